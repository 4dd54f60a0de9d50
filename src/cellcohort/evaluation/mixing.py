"""How far the cells of different experiments lie apart in a representation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from cellcohort.cells import Column
from cellcohort.evaluation.probes import draws_of
from cellcohort.evaluation.score import Held, Score, noted
from cellcohort.messages import in_list, several
from cellcohort.sampling.rng import key_of, uniform

WAYS = 32  # permutations that are computed at once
LISI_NEIGHBOURS = 90  # with scib-metrics' perplexity of a third of it, as Korsunsky et al. use it


def ilisi(inputs: np.ndarray, experiment: np.ndarray, of: np.ndarray | None = None) -> float:
    """Integration local inverse Simpson's index: in how many experiments a cell has its neighbours.

    The median over cells, scaled so that 0 is one experiment and 1 all of them alike (Korsunsky et
    al. 2019, scaled by Luecken et al. 2022), by scib-metrics.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
        With the same number of cells of each experiment, or else 1 is out of reach.
    experiment : numpy.ndarray of int, shape (n_cells,)
        At least two different ones.
    of : numpy.ndarray of bool, shape (n_cells,), optional
        Cells whose neighbours are looked at; by default all.
    """
    with warnings.catch_warnings():  # what its dependencies say on import is nothing to the user
        warnings.simplefilter("ignore")
        from scib_metrics import lisi_knn  # here, because it takes seconds
        from scib_metrics.nearest_neighbors import NeighborsResults
    k = min(LISI_NEIGHBOURS, len(inputs))
    distances, indices = NearestNeighbors(n_neighbors=k).fit(inputs).kneighbors(inputs)
    found = np.asarray(lisi_knn(NeighborsResults(indices=indices, distances=distances), experiment))
    return float((np.nanmedian(found if of is None else found[of]) - 1) / (len(np.unique(experiment)) - 1))


def ilisi_scores(inputs: np.ndarray, held: Held, most: int = 4000) -> list[Score]:
    """Return the :func:`ilisi` of held-out cells, as many of each experiment, up to `most` in all.

    One cell stands for each group of near-copies, such as the frames of a track, which are each other's neighbours
    however well experiments are mixed; the mean over up to five draws of that cell. Where all cells that were held out
    are of one experiment, training cells of the others are among them, and the neighbours of held-out cells count.
    Where a row is a cell in one channel, it is the mean over the markers that two experiments have.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
    held : Held
        Its rows are taken to be in random order.
    most : int
    """
    if held.marker is None:
        return [_ilisi_score(inputs, held, most)]
    of_each = {label.strip(): _ilisi_score(inputs[rows], part, most) for label, rows, part in held.of_markers()}
    scored = {label: score for label, score in of_each.items() if np.isfinite(score.value)}
    left_out = [f"{in_list(label)} ({score.note})" for label, score in of_each.items() if label not in scored]
    if not scored:
        note = noted("needs a marker that two experiments have", left_out=left_out)
        return [Score("experiment_ilisi", np.nan, True, 0, note)]
    said = [f"{label}: {score.note}" for label, score in scored.items()]
    note = noted(f"mean over {several(len(scored), 'marker')}", *said, left_out=left_out)
    value = float(np.mean([score.value for score in scored.values()]))
    return [Score("experiment_ilisi", value, True, sum(score.n for score in scored.values()), note)]


def _ilisi_score(inputs: np.ndarray, held: Held, most: int) -> Score:
    """Return the :func:`ilisi` of the cells."""
    codes, name = held.experiment.codes, "experiment_ilisi"
    rows = np.flatnonzero(~held.training)
    if not len(rows):
        return Score(name, np.nan, True, 0, "no held-out cells")
    alone = len(np.unique(codes[rows])) == 1
    if alone:
        rows = np.flatnonzero(~held.training | (codes != codes[rows[0]]))
    present, counts = np.unique(codes[rows], return_counts=True)
    if len(present) < 2:
        return Score(name, np.nan, True, 0, "needs two experiments")
    found = []
    for drawn in draws_of(held.copies[rows]):
        own = rows[np.sort(drawn)]
        n = min(int(np.bincount(codes[own])[present].min()), most // len(present))
        if n < 2:
            fewest = several(int(counts.min()), "cell")
            return Score(name, np.nan, True, 0, f"needs two groups of cells of each experiment, has {fewest}")
        taken = np.concatenate([own[codes[own] == code][:n] for code in present])
        found.append(ilisi(inputs[taken], codes[taken], ~held.training[taken]))
    copies = "" if len(drawn) == len(rows) else f"one of each {held.copy_name}"
    beside = "neighbours of the held-out experiment among training cells of the others" if alone else ""
    draws = f"mean of {len(found)} draws" if len(found) > 1 else ""
    note = noted(f"{n} cells of each experiment", copies, draws, beside, held.difference_of_conditions)
    return Score(name, float(np.mean(found)), True, len(taken), note)


class Mmd:
    """Squared maximum mean discrepancy between experiments, by the unbiased estimator of Gretton et al. (2012).

    The kernel is Gaussian, its width the median distance between the cells. Cells of one group (a
    track or a family) are not independent, so pairs inside a group are left out, as the estimator
    leaves out pairs of a cell with itself: with one cell per group it is the usual one.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
    group : numpy.ndarray of int, shape (n_cells,)
    width : float
        Of the kernel.
    """

    def __init__(self, inputs: np.ndarray, group: np.ndarray, width: float) -> None:
        _, first, code = np.unique(group, return_index=True, return_inverse=True)
        self.first = first  # a cell of each group
        member = np.zeros((len(inputs), len(first)))
        member[np.arange(len(inputs)), code] = 1.0
        kernel = np.exp(-cdist(inputs, inputs, "sqeuclidean") / (2 * width**2))
        self.sums = member.T @ kernel @ member
        np.fill_diagonal(self.sums, 0.0)
        self._sizes = member.sum(0)

    def between(self, experiments: np.ndarray) -> np.ndarray:
        """Return the estimates between all pairs of experiments, for many assignments of groups to experiments.

        Parameters
        ----------
        experiments : numpy.ndarray of int, shape (n_ways, n_groups)
            Experiment 0, 1, ... of every group, each with at least two groups; -1 leaves a group out.

        Returns
        -------
        numpy.ndarray of float, shape (n_ways, n_pairs)
        """
        n_ways, n = len(experiments), int(experiments.max()) + 1
        member = (experiments[:, :, None] == np.arange(n)).astype(float)  # ways, groups, experiments
        sums = np.empty((n_ways, n, n))
        for start in range(0, n_ways, WAYS):
            own = member[start : start + WAYS]
            half = self.sums @ own.transpose(1, 0, 2).reshape(len(self.sums), -1)
            half = half.reshape(len(self.sums), len(own), n).transpose(1, 0, 2)
            sums[start : start + WAYS] = own.transpose(0, 2, 1) @ half
        cells = np.einsum("wge,g->we", member, self._sizes)
        pairs = cells[:, :, None] * cells[:, None, :]
        pairs[:, np.arange(n), np.arange(n)] -= np.einsum("wge,g->we", member, self._sizes**2)
        means = sums / pairs
        one, other = np.triu_indices(n, 1)
        return means[:, one, one] + means[:, other, other] - 2 * means[:, one, other]

    def __call__(self, one: np.ndarray, other: np.ndarray) -> float:
        """Return the estimate between two disjoint sets of at least two groups, bool (n_groups,) each."""
        return float(self.between(np.where(one, 0, np.where(other, 1, -1))[None])[0, 0])


@dataclass(frozen=True)
class _Stratum:
    """The groups of one condition; `experiment` counts those that are compared from 0, and is -1 for others."""

    mmd: Mmd
    experiment: np.ndarray

    def shuffled(self, keys: Sequence[np.uint64]) -> np.ndarray:
        """Return the experiments of the groups, dealt out anew among those that are compared, (n_keys, n_groups)."""
        tested = np.flatnonzero(self.experiment >= 0)
        moved = np.tile(self.experiment, (len(keys), 1))
        for row, key in zip(moved, keys, strict=True):
            order = np.argsort(uniform(key, np.arange(len(tested), dtype=np.uint64)))
            row[tested] = self.experiment[tested[order]]
        return moved


def mmd_scores(inputs: np.ndarray, held: Held, permutations: int, seed: int, most: int = 3000) -> list[Score]:
    """Return the :class:`Mmd` between experiments, of cells of the same condition, and its permutation p.

    Where a row is a cell in one channel, of the same condition and marker.

    The mean over conditions and pairs of experiments. For p, whole groups change their experiment at
    random within their condition: the share of permutations, the data among them, whose mean is as
    large or larger.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
    held : Held
        Its rows are taken to be in random order.
    permutations : int
    seed : int
        Key of the permutations.
    most : int
        Held-out cells to take.
    """
    names = [("experiment_mmd2", False), ("experiment_mmd_p", True)]
    rows = np.flatnonzero(~held.training)[:most]
    marker = np.zeros(len(held.cells), np.int8) if held.marker is None else held.marker.codes
    width = {code: _width(inputs, rows[marker[rows] == code]) for code in np.unique(marker[rows]).tolist()}
    if not any(width.values()):
        return [Score(name, np.nan, up, 0, "the representation is the same for all cells") for name, up in names]
    strata, n, left_out = _strata(inputs, held, rows, np.array([width.get(code, 0.0) for code in marker.tolist()]))
    if not strata:
        said = noted("needs two groups of held-out cells in two experiments", left_out=left_out)
        return [Score(name, np.nan, up, 0, said) for name, up in names]
    between = np.concatenate([stratum.mmd.between(stratum.experiment[None])[0] for stratum in strata])
    drawn = np.concatenate(
        [
            stratum.mmd.between(stratum.shuffled([key_of(seed, number, place) for number in range(permutations)]))
            for place, stratum in enumerate(strata)
        ],
        axis=1,
    ).mean(axis=1)
    observed = float(between.mean())
    p = float(1 + np.sum(drawn >= observed)) / (1 + permutations)
    within = "condition" if held.marker is None else "condition and marker"
    pairs = noted(f"mean over {several(len(between), 'pair')} of experiments within a {within}", left_out=left_out)
    shuffles = noted(f"{permutations} permutations of whole groups", left_out=left_out)
    found = zip(names, (observed, p), (pairs, shuffles), strict=True)
    return [Score(name, value, up, n, note) for (name, up), value, note in found]


def _width(inputs: np.ndarray, rows: np.ndarray) -> float:
    """Return the median distance between some cells."""
    return float(np.median(cdist(inputs[rows[:1000]], inputs[rows[:1000]]))) if len(rows) else 0.0


def _strata(
    inputs: np.ndarray, held: Held, rows: np.ndarray, width: np.ndarray
) -> tuple[list[_Stratum], int, list[str]]:  # fmt: skip
    """Return the conditions that two experiments share, the cells in them, and what is too little to compare."""
    group, experiment = held.group[rows], held.experiment
    condition = held.condition or Column("condition", np.zeros(len(held.cells), np.int8), ("all cells",))
    if held.marker is not None:
        condition = held.cells.column([*(["condition"] if held.condition else []), "marker"])
        condition = Column(
            condition.name, condition.codes, tuple(" x ".join(map(str, own)) for own in condition.labels)
        )
    strata, n, left_out = [], 0, []
    for code in np.unique(condition.codes[rows][~held.unlabelled[rows]]):
        own = condition.codes[rows] == code
        of_cell = experiment.codes[rows[own]]
        if not width[rows[own]].all():
            left_out.append(f"{condition.labels[code]} (the representation is the same for all cells)")
            continue
        mmd = Mmd(inputs[rows[own]], group[own], float(width[rows[own]][0]))
        of_group = of_cell[mmd.first]
        present, groups = np.unique(of_group, return_counts=True)
        left_out += [f"{condition.labels[code]} of {experiment.labels[e]} (one group)" for e in present[groups < 2]]
        compared = present[groups > 1]
        if len(compared) > 1:
            place = np.searchsorted(compared, of_group).clip(max=len(compared) - 1)
            strata.append(_Stratum(mmd, np.where(compared[place] == of_group, place, -1)))
            n += int(np.isin(of_cell, compared).sum())
    return strata, n, left_out
