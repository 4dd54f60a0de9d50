"""What is to be done to prepare a store, and where it goes; every piece of work can be done alone and again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cellcohort.messages import whole_number

BYTES_PER_BLOCK = 64 * 2**20  # of source rows read at once, by each thread
BYTES_PER_DATASET = 512 * 2**20  # of rows that a thread holds to put them in order


@dataclass(frozen=True)
class Plan:
    """The work of one preparation: source rows are read in blocks, cut into pieces, and gathered into datasets.

    Parameters
    ----------
    folder : pathlib.Path
        Where the work is done; every worker must reach it.
    rows : int
        Cells of the source.
    block_rows, dataset_rows, chunk_rows, shard_rows : int
        Rows read at once, of one dataset, of one chunk (which is what can be read alone), and of one file.
    """

    folder: Path
    rows: int
    block_rows: int
    dataset_rows: int
    chunk_rows: int
    shard_rows: int

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.block_rows)

    @property
    def datasets(self) -> int:
        return -(-self.rows // self.dataset_rows)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def block(self, number: int) -> tuple[int, int]:
        """First source row of a block, and the one after its last."""
        return number * self.block_rows, min((number + 1) * self.block_rows, self.rows)

    def dataset(self, number: int) -> tuple[int, int]:
        """First stored row of a dataset, and the one after its last."""
        return number * self.dataset_rows, min((number + 1) * self.dataset_rows, self.rows)

    def cut_mark(self, block: int) -> Path:
        """There once all pieces of a block are; holds the digests of its rows."""
        return self.folder / "cut" / f"{block}.npy"

    def piece(self, dataset: int, block: int) -> Path:
        return self.folder / "pieces" / str(dataset) / f"{block}.npz"

    def pieces(self, dataset: int) -> list[Path]:
        there = (self.folder / "pieces" / str(dataset)).glob("[0-9]*.npz")
        return sorted(file for file in there if file.is_file())

    def labels(self, dataset: int) -> Path:
        """Return the rows of obs of a dataset, which every worker can read again."""
        return self.folder / "labels" / str(dataset)

    def finished(self, dataset: int) -> Path:
        """There once the dataset is."""
        return self.store / f"dataset_{dataset}"

    def digests(self) -> np.ndarray:
        """Digest of every source row, uint64 (rows,)."""
        return np.concatenate([np.load(self.cut_mark(block)) for block in range(self.blocks)])

    def place(self) -> np.ndarray:
        """Return the stored row of every source row, int64 (rows,)."""
        return np.load(self.folder / "place.npy", mmap_mode="r")


def sized(folder: Path, rows: int, row_bytes: int, chunk_rows: int, shard_rows: int, dataset_rows: int | None) -> Plan:
    """Return a plan whose pieces of work fit into memory.

    Raises
    ------
    ValueError
        A number of rows is out of range, or files and chunks do not fit into each other.
    """
    if whole_number("shard_rows", shard_rows, 1) % whole_number("chunk_rows", chunk_rows, 1):
        raise ValueError(
            f"chunk_rows={chunk_rows}, shard_rows={shard_rows}: a file holds whole chunks; use for instance "
            f"shard_rows={chunk_rows * 64}."
        )
    if dataset_rows is None:
        dataset_rows = max(BYTES_PER_DATASET // row_bytes // shard_rows, 1) * shard_rows
    if whole_number("dataset_rows", dataset_rows, 1) % chunk_rows:
        raise ValueError(
            f"dataset_rows={dataset_rows} must be a multiple of chunk_rows={chunk_rows}, so that chunks stay aligned "
            f"from one dataset to the next; use for instance {chunk_rows * max(1, -(-dataset_rows // chunk_rows))}."
        )
    return Plan(folder, rows, max(BYTES_PER_BLOCK // row_bytes, 1), dataset_rows, chunk_rows, shard_rows)
