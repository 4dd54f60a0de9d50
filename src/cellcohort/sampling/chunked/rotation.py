"""Which groups are primary in each chunk window, in rotation, and how windows are divided among ranks.

The windows of all epochs follow each other in runs. The places of a run are points at equal distances on a line on
which every group has an interval as long as its weight, and they move on by the golden section from run to run. So a
run holds every group the whole number of times below or above its share, and any window is known at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cellcohort.compiled import compiled
from cellcohort.sampling.planning.primary_groups import Groups
from cellcohort.sampling.rng import STEP, WHOLE, Whole, floor_sum, mix, uniform, unit

RUN = 16  # windows
APART = 11  # windows between two that a group has one after the other in a run; odd, near the golden section of RUN
_U = np.uint64


@dataclass(frozen=True)
class Rotation:
    """The chunk windows of all epochs. Each window holds `batches_per_group` batches of each of its primary groups.

    The groups of a window differ wherever the weights allow it, and all groups come to share windows with each other.

    Attributes
    ----------
    groups : Groups
        The intervals of the groups.
    key : numpy.uint64
        Key of the order of windows, and of groups in them.
    groups_per_window, batches_per_group : int
        Primary groups of a window, and batches of each.
    n_batches : int
        Batches by which epochs follow each other in the sequence of windows.
    stride : float
        Share of all chunks by which a window moves on, where groups read the chunks in one common order; 0 where each
        stratum moves through its own chunks by itself.
    """

    groups: Groups
    key: np.uint64
    groups_per_window: int
    batches_per_group: int
    n_batches: int
    stride: float = 0.0

    @property
    def batches_per_window(self) -> int:
        """Batches that are cut from one window."""
        return self.groups_per_window * self.batches_per_group

    @property
    def windows_per_epoch(self) -> int:
        """Windows by which epochs follow each other."""
        return -(-self.n_batches // self.batches_per_window)

    @property
    def all_in_each(self) -> bool:
        """Whether windows have room for every group."""
        return bool(self.groups_per_window >= np.count_nonzero(np.diff(self.groups.end, prepend=0)))

    def groups_of(self, epoch: int, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the primary groups of a window, and how often each was primary in all windows before."""
        run, row = divmod(epoch * self.windows_per_epoch + window, RUN)
        primary, occurrence = run_of_windows(self.groups, self.groups_per_window, run, self.key)
        return primary[row], occurrence[row]


@compiled
def run_of_windows(groups: Groups, per_window: Whole, run: Whole, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
    """Return the primary groups of the windows of a run, and how often each was primary in all windows before.

    Groups in random order are dealt out to the windows, so that none comes twice in a window that need not. Each
    window begins with any of its groups, as an epoch may end within it.
    """
    n, key = RUN * per_window, mix(key, _U(run))
    offset = (groups.begin + run * STEP) % WHOLE
    dealt = np.searchsorted(groups.end, (np.arange(n) * WHOLE + offset) // n, "right")
    present = np.unique(dealt)
    dealt = dealt[np.argsort(uniform(key, dealt.astype(np.uint64)))]
    primary = np.empty((RUN, per_window), np.int64)
    for i in range(n):
        of = np.int64((_U(i % RUN * APART) + key) % _U(RUN))
        at = i // RUN + np.int64(unit(key, _U(WHOLE + of)) * per_window)
        primary[of, at % per_window] = dealt[i]
    before = np.empty(len(present), np.int64)
    for i in range(len(present)):
        low = 0 if present[i] == 0 else groups.end[present[i] - 1]
        before[i] = _places_below(groups, groups.end[present[i]], n, run) - _places_below(groups, low, n, run)
    occurrence = np.empty((RUN, per_window), np.int64)
    for row in range(RUN):
        for place in range(per_window):
            i = np.searchsorted(present, primary[row, place])
            occurrence[row, place] = before[i]
            before[i] += 1
    return primary, occurrence


@compiled
def _places_below(groups: Groups, bound: Whole, n: Whole, runs: Whole) -> Whole:
    """Return how many places of the first `runs` runs of `n` places lie before a bound of the groups' intervals."""
    whole, part = n * bound // WHOLE, n * bound % WHOLE
    begin = groups.begin + WHOLE
    return runs * whole + floor_sum(runs, WHOLE, STEP, begin) - floor_sum(runs, WHOLE, STEP, begin - part)


def place_of[Step: (int, np.ndarray)](step: Step, per_rank: int, per_window: int, rank: int, world_size: int) -> Step:
    """Return the place of batches of a rank in the sequence that all ranks share.

    Ranks take whole windows in turn, and equal parts of the batches that remain at the end of an epoch.
    """
    windows, left = divmod(per_rank, per_window)
    window, within = divmod(step, per_window)
    whole = (window * world_size + rank) * per_window + within
    part = windows * per_window * (world_size - 1) + rank * left + step
    place: Step = whole + (step >= windows * per_window) * (part - whole)
    return place
