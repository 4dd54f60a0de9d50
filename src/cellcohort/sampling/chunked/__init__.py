"""Which cells a batch holds, cut from windows of chunks."""
