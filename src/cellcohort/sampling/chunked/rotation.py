"""Which groups' batches are cut from one window of chunks, over a cycle of windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cellcohort.sampling.planning.cycle import SHORTEST_CYCLE, order_of_primaries
from cellcohort.sampling.planning.rounding import golden_step
from cellcohort.sampling.rng import key_of, uniform

ALIKE = 1.03  # groups that lead by less more or less often than in every window lead in every window


@dataclass(frozen=True)
class Rota:
    """A cycle of windows. In each, `groups` groups lead `turns` batches apiece.

    Attributes
    ----------
    leader : numpy.ndarray of int, shape (n_windows, groups)
        The groups that lead the batches of each window.
    block : numpy.ndarray of int, shape (n_windows, groups)
        How often each of them had led in the cycle before.
    blocks : numpy.ndarray of int, shape (n_groups,)
        How often each group leads in the cycle.
    turns : int
        Batches that a group leads in a row, so to speak: in the windows that it is one of.
    stride : float
        Share of all chunks that a window passes where the strata walk together; 0 where they walk by themselves.
    """

    leader: np.ndarray
    block: np.ndarray
    blocks: np.ndarray
    turns: int
    stride: float = 0.0

    @property
    def groups(self) -> int:
        """Groups that lead in one window."""
        return self.leader.shape[1]

    @property
    def n_batches(self) -> int:
        """Batches that are cut from one window."""
        return self.groups * self.turns

    def __len__(self) -> int:
        return len(self.leader)

    def row[Number: (int, np.ndarray)](self, epoch: int, window: Number) -> tuple[Number, Number]:
        """Laps of the cycle before a window of an epoch, and its place in it."""
        return divmod(epoch * golden_step(len(self)) % len(self) + window, len(self))

    def shift(self, epoch: int, window: np.ndarray) -> np.ndarray:
        """By how many places the groups of some windows are moved on, so that none always comes where an epoch ends."""
        return (uniform(key_of(epoch), window.astype(np.uint64)) * self.groups).astype(int)

    def led(self, epoch: int, batch: np.ndarray) -> np.ndarray:
        """The group that leads each of some batches of an epoch."""
        window, place = np.divmod(batch, self.n_batches)
        return self.leader[self.row(epoch, window)[1], (place + self.shift(epoch, window)) % self.groups]


def build_rota(weights: np.ndarray, groups: int, turns: int, n_batches: int, seed: int) -> Rota:
    """Plan a cycle of windows that holds about `n_batches` batches.

    Parameters
    ----------
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group leads; those of weight 0 never do.
    groups, turns : int
        Groups that lead in one window, and batches that each leads there.

    Notes
    -----
    The groups of a window differ wherever weights allow; where there are more turns than groups, every
    window has all of them, in proportion to their weights. Windows that follow each other are far
    apart in a list sorted by their first group, so that every rank, whatever their number, meets
    all groups in few windows (steps of the golden section, as any multiples of it, fill a circle evenly).
    """
    share = weights / weights.sum()
    blocks = np.where(share > 0, np.maximum(1, np.rint(share * max(n_batches / turns, SHORTEST_CYCLE))), 0)
    blocks = blocks.astype(np.int64)
    once = blocks.sum() // groups
    blocks[(blocks * ALIKE > once) & (blocks < ALIKE * once)] = once  # so that none need come twice in a window
    blocks[share.argmax()] += -blocks.sum() % groups
    if groups > np.count_nonzero(share):
        leader = _evenly(blocks).reshape(-1, groups)
    else:
        leader = _apart(order_of_primaries(blocks, seed)[0].reshape(-1, groups))
    n = len(leader)
    visited = np.arange(n) * golden_step(n) % n
    leader = leader[np.argsort(leader[:, 0], kind="stable")][visited]
    flat = leader.reshape(-1)
    order = np.argsort(flat, kind="stable")
    block = np.empty(len(flat), np.int64)
    block[order] = np.arange(len(flat)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    return Rota(leader, block.reshape(leader.shape), blocks, turns)


def _evenly(blocks: np.ndarray) -> np.ndarray:
    """Every group so often, its turns at the same distance from each other."""
    group = np.repeat(np.arange(len(blocks)), blocks)
    turn = np.arange(len(group)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    return group[np.argsort((turn + 0.5) / blocks[group], kind="stable")].astype(np.int32)


def _apart(leader: np.ndarray) -> np.ndarray:
    """Swap groups that come twice in a window with the next that are not in it."""
    n, groups = leader.shape
    flat = leader.reshape(-1).copy()
    for window in range(n if groups > 1 else 0):
        begin = window * groups
        for place in range(begin + 1, begin + groups):
            for other in range(place, min(place + 64 * groups, len(flat))):
                if flat[other] not in flat[begin:place]:
                    flat[place], flat[other] = flat[other], flat[place]
                    break
    return flat.reshape(n, groups)
