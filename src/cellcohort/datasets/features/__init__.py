"""Windows of features along tracks."""
