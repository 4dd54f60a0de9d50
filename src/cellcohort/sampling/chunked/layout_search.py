"""How many groups lead in one window of chunks, and how many batches each; found by planning windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from cellcohort.messages import joined
from cellcohort.sampling.chunked.reach import due, missed
from cellcohort.sampling.chunked.rotation import Rota, build_rota
from cellcohort.sampling.chunked.window import Window

REHEARSED, REHEARSED_ROWS = 24, 2**17  # windows, and rows of them, by which a layout is judged at first
TRIED, TRIED_ROWS = 48, 2**19  # windows, and rows of them, that the chosen layout must fit into its chunks
ALIKE = 1.02  # layouts whose chunks per batch differ by less are as good as each other
AFFORDABLE = 1.6  # times the least chunks per batch, for a layout with which ranks meet every group
RANKS = (4, 2, 1)  # for which that is looked at
ANEW = 4  # plans of a window, under another key each, one of which must fit for a layout to be chosen gladly
AT_MOST_ANEW = 32  # plans of a window before it may load more chunks; those after the first few are elsewhere
FINER = 0.94  # by how much one layout's batches per window differ from the next one's


def chunks_of_batches(batch_size: int, chunk_size: int) -> int:
    """How many chunks, or a multiple of it, whole batches can be cut from."""
    return batch_size // gcd(batch_size, chunk_size)


@dataclass(frozen=True)
class Layouts:
    """The layouts that the windows of a table in chunks can have.

    Attributes
    ----------
    planned : callable
        ``planned(rota, epoch, number, attempt, most_chunks)`` is a window of a layout.
    weights : numpy.ndarray of float, shape (n_groups,)
        How often each group leads.
    leaky : bool
        Whether cells of other groups leak into a batch.
    places, n_batches, seed : int
        Cells per batch, batches per epoch, and the seed.
    chunk_size, limit, n_chunks : int
        Rows per chunk, chunks that a window may load, and chunks that there are.
    least : float
        Chunks per batch with which all cells of a stratum come equally often, none read in vain.
    mixed : bool
        Whether chunks hold several strata, so that these walk together.
    columns : list of str
        Those that the axes look at.
    """

    planned: Callable[[Rota, int, int, int, int], Window]
    weights: np.ndarray
    leaky: bool
    places: int
    n_batches: int
    seed: int
    chunk_size: int
    limit: int
    n_chunks: int
    least: float
    mixed: bool
    columns: list[str]

    def best(self) -> Rota:
        """The layout that loads the fewest chunks per batch, of those that fit.

        Before it come layouts, if they load few more, in which an epoch of every rank meets every group that leads.
        Where cells leak, several groups share a window if they can: so they leak into each other's batches.

        Raises
        ------
        ValueError
            No batch can be cut from so few chunks.
        """
        n_leaders = int((self.weights > 0).sum())
        several = sorted({min(n, n_leaders) for n in (2, 4, n_leaders)})
        if self.mixed and n_leaders > 1:
            several.append(max(1, self.limit * self.chunk_size // self.places))  # in proportion to their weights
        for choices in [several, [1]] if self.leaky else [sorted({1, *several})]:
            found = [one for groups in choices for one in self._with(groups, n_leaders)]
            best = min((cost for cost, _ in found), default=0.0)
            most = AFFORDABLE * max(best, self.least)
            reach = {id(rota): self._reach(rota) if cost <= most else 0 for cost, rota in found}
            found.sort(key=lambda one: (-reach[id(one[1])], max(one[0], ALIKE * best), -one[1].n_batches))
            for anew in (ANEW, AT_MOST_ANEW):
                for _, rota in found:
                    if self._fits(rota, anew):
                        return rota
        raise ValueError(self._too_few())

    def _too_few(self) -> str:
        """What to say where no layout fits."""
        one = self._rota(1, 1)
        needed = [self.planned(one, 0, i, 0, self.n_chunks).chunks for i in range(REHEARSED)]
        step = chunks_of_batches(self.places, self.chunk_size)
        enough = max(self.limit // step + 1, -(-max(needed) * 5 // (4 * step))) * step
        enough = min(enough, self.n_chunks // step * step)
        anew = f"lay the store out by {joined(self.columns)} (scripts/prepare.py), or " if self.columns else ""
        more = "a smaller batch_size or chunk_size"
        if enough > self.limit:
            larger = f", or a larger multiple of {step}" if enough + step <= self.n_chunks else ""
            more = f"batch_sampler.preload_nchunks={enough}{larger}"
        return (
            f"a batch of {self.places} cells as the axes ask for takes {min(needed)} to {max(needed)} chunks of "
            f"{self.chunk_size} rows, which is not always within preload_nchunks={self.limit}; {anew}use {more}."
        )

    def _rota(self, groups: int, turns: int) -> Rota:
        """A layout before it was tried: where strata walk together, by as much as is read at least."""
        rota = build_rota(self.weights, groups, turns, self.n_batches, self.seed)
        return replace(rota, stride=self.least * rota.n_batches / self.n_chunks) if self.mixed else rota

    def _with(self, groups: int, n_leaders: int) -> Iterator[tuple[float, Rota]]:
        """Layouts with so many groups in a window that fit, each after the chunks that it loads per batch.

        Groups that are more than lead at all, each with one turn, come as often as their weights say.
        """
        many = groups > n_leaders
        n = max(1, self.limit * self.chunk_size // self.places) // (1 if many else groups)
        while n:
            rota = self._rota(n, 1) if many else self._rota(groups, n)
            windows, allowed = [self.planned(rota, 0, 0, 0, int(1.2 * self.limit) + 1)], 1.05 * self.limit
            if windows[0].chunks <= allowed:  # otherwise the others are not worth the time
                tried = min(REHEARSED, len(rota), max(2, REHEARSED_ROWS // (self.limit * self.chunk_size)))
                windows += [self.planned(rota, 0, i, 0, int(1.2 * self.limit) + 1) for i in range(1, tried)]
            chunks = float(np.mean([window.chunks for window in windows]))
            if chunks <= self.limit:
                yield chunks / rota.n_batches, replace(rota, stride=float(np.mean([w.passed for w in windows])))
            n = min(n - 1, int(n * FINER))

    def _reach(self, rota: Rota) -> int:
        """How many ranks there may be so that each meets every group in every epoch; 0 if not even one does."""
        groups = due(self.weights, self.n_batches)
        return next((n for n in RANKS if not missed(rota, groups, self.n_batches // n, n)), 0)

    def _fits(self, rota: Rota, anew: int) -> bool:
        """Whether the first windows of a layout, of several epochs where these are short, load few enough chunks."""
        tried = min(TRIED, max(2, TRIED_ROWS // (self.limit * self.chunk_size)))
        places = [divmod(i, -(-self.n_batches // rota.n_batches)) for i in range(tried)]
        return all(
            any(self.planned(rota, *place, attempt, self.limit + 1).chunks <= self.limit for attempt in range(anew))
            for place in places
        )
