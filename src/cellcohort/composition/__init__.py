"""What every batch held, against what was asked: measured, logged, kept."""
