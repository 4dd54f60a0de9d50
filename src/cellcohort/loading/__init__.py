"""From batches of positions to tensors: row by row, or by chunks."""
