"""What every batch is to hold: strata, quotas, the cycle of batches, shortfalls."""
