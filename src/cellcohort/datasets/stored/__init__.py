"""Cells of a store that is read in chunks."""
