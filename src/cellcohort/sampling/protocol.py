"""What loaders, composition and preview may use of a batch sampler, whether it reads row by row or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeGuard

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.batch import Asked, Batch

if TYPE_CHECKING:
    from annbatch.types import LoadRequest

    from cellcohort.sampling.schedule import Schedule


class Sampler(Protocol):
    """A pure sequence of batches, and the place in it at which the next pass begins.

    Attributes
    ----------
    cells : CellTable
        The cells to draw from; batches hold positions in this table.
    axes : dict of str to Axis
        What batches are to hold.
    batch_size, seed, rank, world_size, num_batches : int
        Options of the sampler; `num_batches` per epoch and rank.
    scope : {"rank", "global"}
        Whether the axes rule each rank's batch, or the union of all ranks' batches of a step.
    fixed : bool
        Whether every pass yields the batches of epoch 0.
    reads_chunks : bool
        Whether it is a :class:`ChunkedSampler`.
    schedule : Schedule or None
        Options of axes that change from epoch to epoch.
    warnings, notes : tuple of str
        What the table cannot give as requested, and what else is worth knowing.
    """

    cells: CellTable
    axes: dict[str, Axis]
    batch_size: int
    seed: int
    rank: int
    world_size: int
    num_batches: int
    fixed: bool
    schedule: Schedule | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def scope(self) -> Literal["rank", "global"]:
        """See above."""

    @property
    def reads_chunks(self) -> bool:
        """See above."""

    @property
    def n_cells(self) -> int:
        """Cells that may be drawn."""

    @property
    def strata_columns(self) -> list[str]:
        """The columns whose labels tell strata apart."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the index holds."""

    @property
    def signature(self) -> dict[str, int | str]:
        """What the sequence of batches depends on, by option."""

    @property
    def unreached(self) -> tuple[str, ...]:
        """Those of `warnings` that say that ranks do not meet every group in each epoch."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def batch(self, epoch: int, step: int) -> np.ndarray:
        """Return the positions of one batch."""

    def asked(self, epoch: int, step: int) -> Asked:
        """Return what the axes ask of one batch."""

    def for_rank(self, rank: int, world_size: int) -> Self:
        """Return the sampler of another rank."""

    def in_epoch(self, epoch: int) -> Self:
        """Return the same sampler with the axes of an epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the step at which the next pass begins."""

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Begin the next pass at the epoch and step of `state`."""


class ChunkedSampler(Sampler, Protocol):
    """A sampler whose batches are cut from chunk windows.

    Attributes
    ----------
    chunk_size, preload_nchunks : int
        Rows that are read as one, and chunks that a window may load.
    """

    chunk_size: int
    preload_nchunks: int

    @property
    def rows(self) -> np.ndarray:
        """Row of the store that each cell is in."""

    @property
    def per_window(self) -> int:
        """Batches that are cut from one window."""

    @property
    def least_amplification(self) -> float:
        """The least rows read per row used."""

    def requests(
        self, epoch: int, first: int = 0, worker: int = 0, num_workers: int = 1
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yield the first step of each window, and the positions of its batches."""

    def load_request(self, batches: Sequence[np.ndarray], n_obs: int) -> LoadRequest:
        """Return the chunks that hold some batches, and where in them their cells are."""


def in_chunks(sampler: Sampler) -> TypeGuard[ChunkedSampler]:
    """Return whether a sampler reads in chunks."""
    return sampler.reads_chunks
