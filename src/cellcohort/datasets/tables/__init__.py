"""Tables with one row per cell and frame: reading, columns, labels."""
