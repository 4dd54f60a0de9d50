"""Where cells and their features come from: one module per kind of source."""
