"""One run of a command: configuration, processes, checkpoints, loggers."""
