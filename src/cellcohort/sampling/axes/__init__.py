"""The axes: one module each, and the four kinds that they derive from."""
