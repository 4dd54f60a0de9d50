"""Time-lapse microscopy: a collection of plates and tracks becomes an index of cells, and cells become patches."""
