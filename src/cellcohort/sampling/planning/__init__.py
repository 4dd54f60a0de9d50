"""What every batch is to hold: strata, targets, the endless sequence of batches, shortfalls."""
