"""AnnData files: their labels, their rows, and what kind of values they hold."""
