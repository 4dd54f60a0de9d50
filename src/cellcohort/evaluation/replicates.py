"""How high replicates of a cell rank among other cells: mean average precision (Kalinin et al. 2025), by copairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import digamma

from cellcohort.cells import CellTable, Name, names_of
from cellcohort.datasets.held_out_cells import CHUNK
from cellcohort.datasets.sample_columns import samples
from cellcohort.evaluation.score import Held, Score, bootstrap_interval, noted
from cellcohort.messages import in_list, joined, listed, several

Labels = Sequence[np.ndarray]
MOST = 2000  # cells of which all pairs are compared
ALIKE = "the representation is the same for all cells"
BLOCK = 512  # vectors that rank the others at once
TIES = 1e-5  # relative to the length of a vector: what puts equal similarities in random order


@dataclass(frozen=True)
class Replicates:
    """Which cells are replicates of a cell, and which others they are ranked among.

    Each is a column, or several; what is the same is so in all of them, what differs differs in each.

    Attributes
    ----------
    pos_sameby : str or sequence of str
        What a replicate has in common with a cell, such as the condition, or compound and dose.
    pos_diffby : str or sequence of str, optional
        What it does not have in common with it, such as the experiment. By default what the split keeps whole: the
        well, the lineage or the track.
    neg_sameby : str or sequence of str, optional
        What the others have in common with the cell, such as the experiment. By default nothing.
    neg_diffby : str or sequence of str
        What they do not have in common with it.

    Raises
    ------
    ValueError
        Nothing says what a replicate is, or one column is to be the same and to differ.
    """

    pos_sameby: Name = field(default_factory=lambda: ["condition"])
    pos_diffby: Name | None = None
    neg_sameby: Name | None = None
    neg_diffby: Name = field(default_factory=lambda: ["condition"])

    def __post_init__(self) -> None:
        for option in ("pos_sameby", "neg_diffby"):
            if not names_of([getattr(self, option)]):
                raise ValueError(f"evaluation.replicates.{option} names no column; use [condition].")
        for kind in ("pos", "neg"):
            same, other = (set(names_of([getattr(self, f"{kind}_{by}")])) for by in ("sameby", "diffby"))
            if both := sorted(same & other):
                raise ValueError(
                    f"evaluation.replicates.{kind}_sameby and {kind}_diffby both name {joined(both)}, so no pair of "
                    "cells would do; leave it out of one of them."
                )

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        every = (self.pos_sameby, self.pos_diffby, self.neg_sameby, self.neg_diffby)
        return list(dict.fromkeys(names_of(every)))


class Precision(NamedTuple):
    """The average precision of some vectors; NaN, and 0 others, for those that no positive or no negative has.

    Attributes
    ----------
    value : numpy.ndarray of float, shape (n,)
    n_positive, n_ranked : numpy.ndarray of int, shape (n,)
        Positives, and positives and negatives together.
    """

    value: np.ndarray
    n_positive: np.ndarray
    n_ranked: np.ndarray

    @property
    def chance(self) -> np.ndarray:
        """What a ranking in random order gives on average, float (n,)."""
        n = np.maximum(self.n_ranked, 2).astype(float)
        harmonic = digamma(n + 1) + np.euler_gamma
        value = ((self.n_positive - 1) / (n - 1) * (n - harmonic) + harmonic) / n
        return np.where(self.n_ranked > 1, value, 1.0)


class Rule(NamedTuple):
    """Which vectors are positives of each other, and which are negatives: codes of labels, int (n,) each."""

    pos_sameby: Labels
    pos_diffby: Labels
    neg_sameby: Labels
    neg_diffby: Labels


def average_precision(vectors: np.ndarray, rule: Rule, n_queries: int | None = None) -> Precision:
    """Rank the positives and the negatives of each vector by their cosine similarity to it.

    The average precision is the mean, over the positives, of the share of positives among all that rank as high or
    higher, by copairs. Equal similarities are in random order: in a fixed order the score would depend on the order of
    the rows, also where all vectors are the same. What the rule makes both a positive and a negative is a positive.

    Parameters
    ----------
    vectors : numpy.ndarray of float, shape (n, dim)
    rule : Rule
    n_queries : int, optional
        Only the first so many rank the others; by default all.

    Returns
    -------
    Precision
        Of `n_queries` vectors.
    """
    from copairs.compute import ap_contiguous  # here, because it takes a second

    points = on_sphere(vectors) + TIES * np.random.default_rng(0).normal(size=vectors.shape)
    n = len(points) if n_queries is None else n_queries
    value, counts = np.full(n, np.nan), np.zeros((2, n), int)
    for start in range(0, n, BLOCK):
        rows = np.arange(start, min(start + BLOCK, n))
        own = Rule(*([codes[rows] for codes in part] for part in rule))
        positive, ranked = _pairs(own[:2], rule[:2]), _pairs(own[2:], rule[2:])
        ranked |= positive
        ranked[np.arange(len(rows)), rows] = False  # not itself
        positive &= ranked
        found = positive.any(axis=1) & (ranked & ~positive).any(axis=1)
        rows, positive, ranked = rows[found], positive[found], ranked[found]
        if not len(rows):
            continue
        # cdist and not a product of matrices, which loses small differences
        order = np.where(ranked, cdist(points[rows], points), np.inf).argsort(axis=1)
        n_ranked = ranked.sum(axis=1)
        relevant = np.take_along_axis(positive, order, axis=1)[np.arange(len(points)) < n_ranked[:, None]]
        value[rows], _ = ap_contiguous(relevant.astype(np.uint32), n_ranked)
        counts[:, rows] = positive.sum(axis=1), n_ranked
    return Precision(value, *counts)


def on_sphere(vectors: np.ndarray) -> np.ndarray:
    """Return vectors with a length of 1, float64."""
    vectors = vectors.astype(np.float64)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def centred(inputs: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Return a representation less its mean over the training cells, float64 (n_cells, dim).

    The cosine of two cells then says how alike their differences from the mean cell are, wherever the origin was.
    """
    values = inputs.astype(np.float64)
    return values - (values[training] if training.any() else values).mean(0)


def all_alike(inputs: np.ndarray) -> bool:
    """Whether a representation is the same for all cells, but for rounding."""
    return bool(np.ptp(inputs, axis=0).max(initial=0) <= 1e-6 * np.abs(inputs).max(initial=0))


def replicate_scores(inputs: np.ndarray, held: Held, replicates: Replicates, most: int = MOST) -> list[Score]:
    """Return the mean average precision of the replicates of held-out cells, ``replicate_map``.

    Each held-out cell ranks its replicates and its negatives, in both parts of the split, by cosine similarity. The
    score is the mean over the labels of `pos_sameby` of the mean over their held-out cells.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
        :func:`centred`, or with an origin that means something, such as the controls.
    held : Held
        Its rows are taken to be in random order.
    replicates : Replicates
    most : int
        Cells to take, at most half of them held out.
    """
    name = "replicate_map"
    if lacking := [column for column in replicates.columns if not held.cells.has(column)]:
        return [Score(name, np.nan, True, 0, f"the table has no {joined(lacking)}")]
    if all_alike(inputs):
        return [Score(name, np.nan, True, 0, ALIKE)]
    labels = names_of([replicates.pos_sameby, replicates.neg_diffby])
    labelled = ~np.any([held.cells.unlabelled(column) for column in labels], axis=0)
    rest, fit = np.flatnonzero(~held.training & labelled)[: most // 2], np.flatnonzero(held.training & labelled)
    rows = np.concatenate([rest, fit[: most - len(rest)]])
    rule = _rule(held, replicates, rows)
    found = average_precision(inputs[rows], rule, len(rest))
    scored = np.flatnonzero(np.isfinite(found.value))
    words = _in_words(held, replicates)
    if not len(scored):
        return [Score(name, np.nan, True, 0, noted("no held-out cell has a replicate and a negative", words))]
    _, label = np.unique(_jointly(rule.pos_sameby)[scored], return_inverse=True)
    experiment = np.unique(held.experiment.codes[rows[scored]], return_inverse=True)[1]
    value, chance = (float(over_labels(each[scored], label)) for each in (found.value, found.chance))
    sums = np.zeros((experiment.max() + 1, label.max() + 1))
    totals = np.zeros_like(sums)
    np.add.at(sums, (experiment, label), found.value[scored])
    np.add.at(totals, (experiment, label), 1)
    low, high = bootstrap_interval(sums, totals)
    lost, bare = len(rest) - len(scored), int((~labelled & ~held.training).sum())
    left_out = [f"{several(lost, 'cell')} without a replicate"] * bool(lost)
    left_out += [f"{several(bare, 'cell')} without a label"] * bool(bare)
    note = noted(
        f"chance {chance:.3g}",
        f"mean over {several(int(label.max()) + 1, 'label')} of {joined(names_of([replicates.pos_sameby]))}, of "
        "held-out cells ranking cells of both parts",
        words,
        *_confounded(held, rows[scored], rows, replicates),
        left_out=left_out,
    )
    return [Score(name, value, True, len(scored), note, low, high)]


def over_labels(values: np.ndarray, label: np.ndarray) -> float:
    """Return the mean over labels of the mean of their values."""
    return float((np.bincount(label, values) / np.bincount(label)).mean())


def _rule(held: Held, replicates: Replicates, rows: np.ndarray) -> Rule:
    def codes(name: Name | None) -> list[np.ndarray]:
        return [held.cells.column(one).codes[rows].astype(np.int64) for one in names_of([name])]

    pos_diffby = codes(replicates.pos_diffby)
    if replicates.pos_diffby is None and held.whole != CHUNK:
        pos_diffby = [held.group[rows].astype(np.int64)]
    return Rule(codes(replicates.pos_sameby), pos_diffby, codes(replicates.neg_sameby), codes(replicates.neg_diffby))


def _in_words(held: Held, replicates: Replicates) -> str:
    def said(same: Name | None, other: Sequence[str]) -> str:
        parts = [f"the same {joined(names_of([same]))}"] if names_of([same]) else []
        return joined([*parts, f"another {joined(list(other))}"] if other else parts)

    apart = names_of([replicates.pos_diffby])
    if replicates.pos_diffby is None and held.whole != CHUNK:
        apart = names_of([held.whole])
    positives = said(replicates.pos_sameby, apart)
    return f"replicates have {positives}, negatives {said(replicates.neg_sameby, names_of([replicates.neg_diffby]))}"


def _confounded(held: Held, scored: np.ndarray, rows: np.ndarray, replicates: Replicates) -> list[str]:
    """Return what else than the label may make replicates alike, or negatives different."""
    own, every = (_rule(held, replicates, part) for part in (scored, rows))
    positive = _pairs(own[:2], every[:2])
    positive &= scored[:, None] != rows
    negative = _pairs(own[2:], every[2:])
    experiment = held.experiment.codes
    crosses = experiment[scored][:, None] != experiment[rows]
    said = []
    if (negative & crosses).any() and not (positive & crosses).any():
        said.append(
            "confounded: replicates are all of one experiment and negatives are not, so that what differs between "
            "experiments can look like a difference between conditions; evaluation.replicates.neg_sameby=[experiment] "
            "takes negatives of the same experiment"
        )
    alone = (positive & ~crosses).any(1) & negative.any(1) & ~(negative & ~crosses).any(1)
    if alone.any() and not said:
        names = [held.cells.column(name) for name in names_of([replicates.pos_sameby])]
        labels = {" x ".join(str(one.labels[one.codes[row]]) for one in names) for row in scored[alone]}
        said.append(
            f"confounded for {listed(sorted(labels), 3, in_list)}: cells have replicates in their own experiment and "
            "negatives in others only, so that what differs between experiments can look like a difference between "
            "conditions; evaluation.replicates.pos_diffby=[experiment] takes replicates of other experiments"
        )
    for name, sample in samples(held.cells):
        pairs = np.unique(np.stack([sample[rows], _jointly(every.pos_sameby)]), axis=1)[0]
        one_each = len(np.unique(pairs)) == len(pairs)
        if one_each and (positive & (sample[scored][:, None] == sample[rows])).any():
            said.append(
                f"condition and {name} cannot be told apart: each {name} has one label, and replicates are of the same "
                f"{name} too; name it in evaluation.replicates.pos_diffby"
            )
            break
    return said


def _pairs(own: Sequence[Labels], every: Sequence[Labels]) -> np.ndarray:
    """Which of some cells (rows) and all (columns) have the same labels in some columns, and others in others."""
    (same, apart), (same_of, apart_of) = own, every
    found = np.ones((len((*same, *apart)[0]), len((*same_of, *apart_of)[0])), bool)
    for one, each in zip(same, same_of, strict=True):
        found &= one[:, None] == each
    for one, each in zip(apart, apart_of, strict=True):
        found &= one[:, None] != each
    return found


def _jointly(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return the number of the combination of labels of each cell, from 0."""
    return np.unique(np.stack(columns), axis=1, return_inverse=True)[1].ravel()


def refuse_unknown(cells: CellTable, names: Sequence[str], option: str) -> None:
    """Refuse columns that a table does not have, other than a condition or an experiment, which it may lack.

    Raises
    ------
    ValueError
        The column, and those that there are.
    """
    for name in names:
        if name in ("condition", "experiment") and not cells.has(name):
            continue
        try:
            cells.column(name)
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from error
