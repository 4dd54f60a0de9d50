"""What the preview warns of: one module per kind of check."""
