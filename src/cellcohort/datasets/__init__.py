"""What is seen of a cell: tables, windows of features, images, stores; splits and positives."""
