"""What makes the sampler of another library a batch sampler of this one."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Self, override

import numpy as np

from cellcohort.messages import several
from cellcohort.sampling.axes.base import Axis, GroupAxis, WindowAxis
from cellcohort.sampling.batch import Asked
from cellcohort.sampling.batch_sampler import BatchSampler
from cellcohort.sampling.kept import Kept
from cellcohort.sampling.rng import key_of

_KEPT = 2  # epochs whose batches are kept: the one in use, and the one that is loaded ahead


class Baseline(BatchSampler):
    """Yield the batches that the sampler of another library draws.

    The other library draws all batches that one rank has in an epoch, from a generator whose seed is a key of the
    seed, the epoch and the rank. So any process can draw the batches of any rank, and a run that was stopped goes on
    with the batches that come next.

    Attributes
    ----------
    about : str
        Which sampler of which library it is, and what it does not promise, in a sentence.
    options : dict of str to object
        Options of its own.

    Notes
    -----
    Unlike those of :class:`~cellcohort.sampling.BatchSampler`, the first batch of an epoch waits for the whole epoch,
    whose positions are kept; another world size makes other batches; and batches of several ranks may hold the same
    cells. `axes` are what the sampler is asked, so that composition and preview can tell it from what batches hold.
    The primary group of a batch is the label that most of its cells have, since other libraries do not tell it.
    """

    about: str
    options: Mapping[str, Any]
    _epochs: Kept[np.ndarray] | None = None

    @abstractmethod
    def _epoch(self, key: int) -> np.ndarray:
        """Draw all batches of an epoch, int64 of shape (num_batches, batch_size), from a key below 2**64."""

    @override
    def for_rank(self, rank: int, world_size: int) -> Self:
        twin = super().for_rank(rank, world_size)
        twin._epochs = None
        return twin

    @property
    @override
    def signature(self) -> dict[str, int | str]:
        """What the sequence of batches depends on, by option; the same on every rank."""
        return {**super().signature, **{name: repr(value) for name, value in self.options.items()}}

    def __repr__(self) -> str:
        own = {**self.options, "batch_size": self.batch_size, "seed": self.seed, "rank": self.rank}
        own |= {"world_size": self.world_size, "num_batches": self.num_batches}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in own.items())})"

    @override
    def asked(self, epoch: int, step: int) -> Asked:
        batch, plan = self.batch(epoch, step), self._picker.plan
        primary, focal = 0, np.nan
        for axis in self.axes.values():
            if isinstance(axis, GroupAxis):
                primary = int(np.bincount(self._codes(axis)[batch]).argmax())
            elif isinstance(axis, WindowAxis):
                focal = self._focal(axis.values(self.cells)[batch])
        return plan.asked(primary, focal)

    def _focal(self, hours: np.ndarray) -> float:  # noqa: ARG002
        """Find the focal time of a batch in the hours of its cells, in the order in which they were drawn."""
        return np.nan

    def _codes(self, axis: GroupAxis) -> np.ndarray:
        """Code of the group of every cell; kept, since a joint column is coded anew each time."""
        if "_group_codes" not in vars(self):
            self._group_codes = self.cells.column(axis.column).codes
        return self._group_codes

    @override
    def _draw(self, epoch: int, step: int) -> np.ndarray:
        if step >= self.num_batches:
            raise ValueError(
                f"step={step} is not drawn: an epoch has {several(self.num_batches, 'batch')}. Set num_batches to more."
            )
        if self._epochs is None:
            self._epochs = Kept(_KEPT)
        return self._epochs.get(epoch, lambda: self._drawn(epoch))[step].copy()

    def _drawn(self, epoch: int) -> np.ndarray:
        batches = self._epoch(int(key_of(self.seed, epoch, self.rank)))
        if batches.shape != (self.num_batches, self.batch_size):
            raise RuntimeError(
                f"{type(self).__name__} drew {batches.shape[0]} batches of {batches.shape[1]} cells for "
                f"{self.num_batches} of {self.batch_size}; another version of the library may draw otherwise."
            )
        return batches

    @override
    def _shortfalls(self) -> tuple[str, ...]:
        return ()  # what a table cannot give is said of exact quotas; these are measured only


def refuse_axes(axes: Mapping[str, Axis] | None, name: str) -> None:
    """Refuse axes, which a sampler of another library does not follow.

    Raises
    ------
    ValueError
        There is one.
    """
    if axes:
        raise ValueError(
            f"{name} does not follow axes, but was given {', '.join(sorted(axes))}: leave them out (sampler=random) "
            "and set its own options, or draw with batch_sampler=default."
        )


def whole_batches(num_batches: Any) -> int | None:
    """Return the number of batches, which cannot be "cover".

    Raises
    ------
    ValueError
        It is "cover".
    """
    if num_batches == "cover":
        raise ValueError(
            "num_batches='cover' cannot be promised where another library draws at random; use an integer >= 1, or "
            "null (None), which is as many as the cells fill."
        )
    return num_batches


def module_of(package: str, *path: str) -> ModuleType:
    """Load one file of an installed package without the package.

    Whole packages of this kind are slow to load, and viscy-data changes how iohub reads images when it is loaded.

    Parameters
    ----------
    package : str
        Import name of the package.
    *path : str
        The file within it.
    """
    found: ModuleSpec | None = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"{package} is not installed.", name=package)
    file = Path(found.submodule_search_locations[0], *path)
    spec = importlib.util.spec_from_file_location(f"_{package}_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{file} cannot be loaded.", name=package)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
