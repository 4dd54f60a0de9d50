"""How far the cells of different experiments lie apart in a representation."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from cellcohort.evaluation.score import Held, Score, mean, noted
from cellcohort.sampling.keyed import key_of, permuted_each

LISI_NEIGHBOURS = 90  # with scib-metrics' perplexity of a third of it, as Korsunsky et al. use it


def ilisi(inputs: np.ndarray, experiment: np.ndarray) -> float:
    """Integration local inverse Simpson's index: in how many experiments a cell has its neighbours.

    The median over cells, scaled so that 0 is one experiment and 1 all of them alike (Korsunsky et
    al. 2019, scaled by Luecken et al. 2022), by scib-metrics.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
        With the same number of cells of each experiment, or else 1 is out of reach.
    experiment : numpy.ndarray of int, shape (n_cells,)
        At least two different ones.
    """
    with warnings.catch_warnings():  # what its dependencies say on import is nothing to the user
        warnings.simplefilter("ignore")
        from scib_metrics import ilisi_knn  # here, because it takes seconds
        from scib_metrics.nearest_neighbors import NeighborsResults
    k = min(LISI_NEIGHBOURS, len(inputs))
    distances, indices = NearestNeighbors(n_neighbors=k).fit(inputs).kneighbors(inputs)
    return float(ilisi_knn(NeighborsResults(indices=indices, distances=distances), experiment))


def ilisi_scores(inputs: np.ndarray, held: Held, most: int = 4000) -> list[Score]:
    """The :func:`ilisi` of held-out cells, as many of each experiment, up to `most` in all.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
    held : Held
        Its rows are taken to be in random order.
    most : int
    """
    codes, name = held.experiment.codes, "experiment_ilisi"
    rows = np.flatnonzero(~held.training)
    present, counts = np.unique(codes[rows], return_counts=True)
    if len(present) < 2:
        return [Score(name, np.nan, True, 0, "needs two experiments")]
    n = min(int(counts.min()), most // len(present))
    if n < 2:
        return [Score(name, np.nan, True, 0, f"needs two held-out cells of each experiment, has {counts.min()}")]
    taken = np.concatenate([rows[codes[rows] == code][:n] for code in present])
    return [Score(name, ilisi(inputs[taken], codes[taken]), True, len(taken), f"{n} cells of each experiment")]


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
        self._sums = member.T @ kernel @ member
        np.fill_diagonal(self._sums, 0.0)
        self._sizes = member.sum(0)

    def __call__(self, one: np.ndarray, other: np.ndarray) -> float:
        """The estimate between two sets of groups, bool (n_groups,) each; at least two groups in each."""
        return self._mean(one, one) + self._mean(other, other) - 2 * self._mean(one, other)

    def _mean(self, one: np.ndarray, other: np.ndarray) -> float:
        pairs = self._sizes[one].sum() * self._sizes[other].sum() - (self._sizes[one & other] ** 2).sum()
        return float(self._sums[np.ix_(one, other)].sum() / pairs)


def mmd_scores(inputs: np.ndarray, held: Held, permutations: int, seed: int, most: int = 3000) -> list[Score]:
    """The :class:`Mmd` between experiments, of cells of the same condition, and its permutation p.

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
    experiment, group = held.experiment, held.group[rows]
    condition = held.condition.codes[rows] if held.condition is not None else np.zeros(len(rows), int)
    title = held.condition.labels if held.condition is not None else ("all cells",)
    width = float(np.median(cdist(inputs[rows[:1000]], inputs[rows[:1000]]))) if len(rows) else 0.0
    if not width > 0:
        return [Score(name, np.nan, up, 0, "the representation is the same for all cells") for name, up in names]
    parts: list[tuple[Mmd, np.ndarray, list[tuple[int, int]]]] = []
    left_out, n = [], 0
    for code in np.unique(condition):
        own = condition == code
        estimate = Mmd(inputs[rows[own]], group[own], width)
        of = experiment.codes[rows[own]][estimate.first]
        several = [int(e) for e in np.unique(of) if np.sum(of == e) > 1]
        left_out += [f"{title[code]} of {experiment.labels[e]} (one group)" for e in np.unique(of) if e not in several]
        if len(several) > 1:
            parts.append((estimate, of, list(itertools.combinations(several, 2))))
            n += int(np.isin(experiment.codes[rows[own]], several).sum())
    if not parts:
        said = noted("needs two groups of held-out cells in two experiments", left_out=left_out)
        return [Score(name, np.nan, up, 0, said) for name, up in names]

    def statistic(labels: list[np.ndarray]) -> float:
        return mean(
            estimate(of == a, of == b)
            for (estimate, _, pairs), of in zip(parts, labels, strict=True)
            for a, b in pairs
        )  # fmt: skip

    observed = statistic([of for _, of, _ in parts])
    drawn = []
    for number in range(permutations):
        shuffled = []
        for part, (_, of, pairs) in enumerate(parts):
            moved, tested = of.copy(), np.flatnonzero(np.isin(of, pairs))
            order = permuted_each(
                np.arange(len(tested)), np.full(len(tested), len(tested)), np.zeros(len(tested), np.int64),
                key_of(seed, number, part),
            )  # fmt: skip
            moved[tested] = of[tested[order]]
            shuffled.append(moved)
        drawn.append(statistic(shuffled))
    p = (1 + sum(value >= observed for value in drawn)) / (1 + permutations)
    said = noted(f"mean over {sum(len(pairs) for _, _, pairs in parts)} pairs", left_out=left_out)
    return [
        Score(names[0][0], observed, False, n, said),
        Score(names[1][0], p, True, n, noted(f"{permutations} permutations of whole groups", left_out=left_out)),
    ]
