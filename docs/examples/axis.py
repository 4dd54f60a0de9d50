"""An axis of one's own: labels in proportion to a power of their number of cells."""

from collections import Counter

import numpy as np
import pandas as pd

from cellcohort.cells import CellTable, Column
from cellcohort.sampling import BatchSampler
from cellcohort.sampling.axes.base import ShareAxis


class Tempered(ShareAxis):
    def __init__(self, power: float = 0.5, column: str = "condition") -> None:
        if not 0 < power <= 1:
            raise ValueError(f"power must be a number in (0, 1], got {power!r}; 1 keeps the shares that the table has.")
        self.power, self.column = power, column

    def shares(self, column: Column) -> np.ndarray:
        return column.counts() ** self.power


conditions = ["common"] * 9000 + ["rare"] * 100
cells = CellTable.from_frame(pd.DataFrame({"condition": conditions, "experiment": "P1"}))
sampler = BatchSampler(cells, axes={"tempered": Tempered(0.5)}, batch_size=105)
held = Counter(conditions[row] for batch in sampler for row in batch)
print({name: round(count / held.total(), 3) for name, count in held.items()})  # sqrt(9000) to sqrt(100): 0.905, 0.095
