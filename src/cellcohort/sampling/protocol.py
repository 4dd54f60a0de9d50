"""What loaders, composition and preview may use of a batch sampler, and what this uses to choose cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeGuard

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.sampling.axes.base import Axis
from cellcohort.sampling.batch import Asked, Batch

if TYPE_CHECKING:
    from annbatch.types import LoadRequest

    from cellcohort.sampling.planning.plan import Plan
    from cellcohort.sampling.schedule import Schedule


class Options(Protocol):
    """What a sampler was made with, and the number of its batches."""

    cells: CellTable
    axes: dict[str, Axis]
    batch_size: int
    seed: int
    rank: int
    world_size: int
    num_batches: int
    schedule: Schedule | None


class Sampler(Options, Protocol):
    """A pure sequence of batches, and the place in it at which the next pass begins: see `BatchSampler`."""

    fixed: bool
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def scope(self) -> Literal["rank", "global"]: ...

    @property
    def reads_chunks(self) -> bool: ...

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
    """A sampler whose batches are cut from chunk windows: see `ChunkSampler`."""

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


class Picker(Protocol):
    """Which cells the batches of a plan hold.

    Attributes
    ----------
    plan : Plan
        What each batch is to hold.
    warnings : tuple of str
        What the table cannot give as asked.
    nbytes : int
        Bytes of memory held.
    """

    @property
    def plan(self) -> Plan: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def pick(self, epoch: int, number: int) -> np.ndarray:
        """Positions of the batch with this place in the sequence that all ranks share, int64 of shape (places,)."""

    def asked(self, epoch: int, number: int) -> Asked:
        """Return what the axes ask of it."""


def in_chunks(sampler: Sampler) -> TypeGuard[ChunkedSampler]:
    """Return whether a sampler reads in chunks."""
    return sampler.reads_chunks
