"""Which cells a batch holds, drawn row by row."""
