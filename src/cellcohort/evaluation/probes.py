"""What a simple classifier, fitted on training cells, tells from the representation of held-out cells."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import mean_absolute_error, r2_score, recall_score
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cellcohort.evaluation.score import Held, Score, mean, noted
from cellcohort.messages import several

Classify = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
Folds = list[tuple[np.ndarray, np.ndarray]]
NEIGHBOURS = 15


def linear(inputs: np.ndarray, labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Labels of `others` by logistic regression, the linear probe of Alain and Bengio (2016).

    Inputs are standardised over the cells that it is fitted on, and classes weigh alike however
    many cells they have.

    Parameters
    ----------
    inputs, others : numpy.ndarray of float, shape (n, dim) and (m, dim)
        What to fit on, and what to tell the labels of.
    labels : numpy.ndarray of int, shape (n,)
        At least two different ones.
    """
    probe = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=2000, tol=1e-3))
    return probe.fit(inputs, labels).predict(others)


def nearest(inputs: np.ndarray, labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Labels of `others` by the vote of the 15 nearest cells (Cover and Hart 1967), after standardising.

    The share of a class among the neighbours is divided by its share of all cells, so that a rare
    class can win where it is denser than elsewhere. Parameters as for :func:`linear`.
    """
    voters = KNeighborsClassifier(min(NEIGHBOURS, len(inputs)))
    probe = make_pipeline(StandardScaler(), voters).fit(inputs, labels)
    share = np.bincount(np.searchsorted(voters.classes_, labels)) / len(labels)
    return voters.classes_[np.argmax(probe.predict_proba(others) / share, axis=1)]


def condition_scores(inputs: np.ndarray, held: Held) -> list[Score]:
    """How well held-out cells tell their condition: by :func:`linear` and by :func:`nearest`.

    "within": fitted on the training cells of the same experiment (where a whole experiment was held
    out, on its other cells, in five folds that cut no group). "across": fitted on the training cells
    of all other experiments. Each is the balanced accuracy, the mean over conditions of the share of
    cells that are told right, averaged over experiments; "rarest" is that share for the condition
    with the fewest cells, by itself. An experiment without a held-out cell of each condition is left
    out of the score across experiments; within, conditions are left out. All that is left out is
    named in the note.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
    held : Held
    """
    methods: list[tuple[str, Classify]] = [("probe", linear), ("knn", nearest)]
    return [
        score
        for method, classify in methods
        for where in ("within", "across")
        for score in _condition(inputs, held, f"{method}_{where}", classify, across=where == "across")
    ]


def _condition(inputs: np.ndarray, held: Held, name: str, classify: Classify, across: bool) -> list[Score]:
    names = (f"condition_{name}", f"rarest_{name}")
    condition, experiment = held.condition, held.experiment
    counts = condition.counts() if condition is not None else np.zeros(1)
    there = np.flatnonzero(counts)
    if condition is None or len(there) < 2:
        return [Score(one, np.nan, True, 0, "needs two conditions") for one in names]
    if across and (reason := _alone(held)):
        return [Score(one, np.nan, True, 0, reason) for one in names]
    rarest = there[np.argmin(counts[there])]
    accuracy, recall, n, n_rarest = [], [], 0, 0
    lacks: list[str] = []
    lacks_rarest: list[str] = []
    for code in np.unique(experiment.codes):
        label = experiment.labels[code]
        folds = _across(held, code) if across else _within(held, condition.codes, code)
        truth, answer = _answers(inputs, condition.codes, folds, classify)
        present = np.unique(truth)
        missing = [str(condition.labels[i]) for i in there if i not in present]
        if missing and (across or len(present) < 2):
            why = f"of {' and '.join(missing)}" if len(truth) else "at all"
            lacks.append(f"{label} (no held-out or no training cells {why})")
        else:
            lacks += [f"{one} of {label}" for one in missing]
            accuracy.append(recall_score(truth, answer, labels=present, average="macro", zero_division=0))
            n += len(truth)
        if rarest in present and len(present) > 1:
            recall.append(float(np.mean(answer[truth == rarest] == rarest)))
            n_rarest += int(np.sum(truth == rarest))
        else:
            lacks_rarest.append(str(label))
    chance = f"chance {1 / len(there):.3g}; mean over {several(len(accuracy), 'experiment')}"
    of = f"recall of {condition.labels[rarest]}; mean over {several(len(recall), 'experiment')}"
    return [
        Score(names[0], mean(accuracy), True, n, noted(chance, left_out=lacks)),
        Score(names[1], mean(recall), True, n_rarest, noted(of, left_out=lacks_rarest)),
    ]


def _answers(inputs: np.ndarray, codes: np.ndarray, folds: Folds, classify: Classify) -> tuple[np.ndarray, np.ndarray]:
    """True and told codes of all folds, of those cells whose class the fit can know."""
    truth, answer = [np.empty(0, int)], [np.empty(0, int)]
    for fit, rest in folds:
        known = np.unique(codes[fit])
        rest = rest[np.isin(codes[rest], known)]
        if len(known) > 1 and len(rest):
            truth.append(codes[rest])
            answer.append(classify(inputs[fit], codes[fit], inputs[rest]))
    return np.concatenate(truth), np.concatenate(answer)


def hours_scores(inputs: np.ndarray, held: Held) -> list[Score]:
    """How well hours are told in an experiment that a ridge regression has not seen (Hoerl and Kennard 1970).

    Fitted on the standardised training cells of all other experiments, scored on the held-out cells
    of each: R2 (0 where no better than the mean of these cells, and below where worse) and the mean
    absolute error in hours, averaged over experiments. Parameters as for :func:`condition_scores`.
    """
    hours = held.cells.hours
    reason = "the table has no hours" if hours is None else _alone(held)
    found, left_out, n = [], [], 0
    if hours is not None and not reason:
        for code in np.unique(held.experiment.codes):
            fit, rest = (rows[np.isfinite(hours[rows])] for rows in _across(held, code)[0])
            if not len(fit) or len(np.unique(hours[rest])) < 2:
                left_out.append(f"{held.experiment.labels[code]} (held-out cells of fewer than two times)")
                continue
            told = make_pipeline(StandardScaler(), Ridge()).fit(inputs[fit], hours[fit]).predict(inputs[rest])
            found.append((r2_score(hours[rest], told), mean_absolute_error(hours[rest], told)))
            n += len(rest)
    said = noted(reason or f"mean over {several(len(found), 'experiment')}", left_out=left_out)
    return [
        Score("hours_r2_across", mean(r2 for r2, _ in found), True, n, said),
        Score("hours_mae_across", mean(mae for _, mae in found), False, n, noted("" if reason else "hours", said)),
    ]


def experiment_scores(inputs: np.ndarray, held: Held) -> list[Score]:
    """Balanced accuracy with which :func:`linear` tells the experiment of held-out cells; low where they are mixed.

    Where whole experiments were held out, it tells these apart, in five folds that cut no group.
    Parameters as for :func:`condition_scores`.
    """
    codes, name = held.experiment.codes, "experiment_probe"
    rows = np.flatnonzero(~held.training)
    if reason := _alone(held, rows):
        return [Score(name, np.nan, False, 0, reason)]
    fit = np.flatnonzero(held.training)
    known = np.isin(np.unique(codes[rows]), codes[fit]).all()
    folds = [(fit, rows)] if known else _folds(rows, codes, held.group)
    truth, answer = _answers(inputs, codes, folds, linear)
    if not len(truth):
        return [Score(name, np.nan, False, 0, "needs two experiments with two groups of held-out cells")]
    present = np.unique(truth)
    value = recall_score(truth, answer, labels=present, average="macro", zero_division=0)
    return [Score(name, float(value), False, len(truth), f"chance {1 / len(present):.3g}")]


def _alone(held: Held, rows: np.ndarray | slice = slice(None)) -> str:
    return "" if len(np.unique(held.experiment.codes[rows])) > 1 else "needs two experiments"


def _across(held: Held, code: int) -> Folds:
    own = held.experiment.codes == code
    return [(np.flatnonzero(held.training & ~own), np.flatnonzero(~held.training & own))]


def _within(held: Held, codes: np.ndarray, code: int) -> Folds:
    own = held.experiment.codes == code
    fit, rest = np.flatnonzero(held.training & own), np.flatnonzero(~held.training & own)
    return [(fit, rest)] if len(fit) else _folds(rest, codes, held.group)


def _folds(rows: np.ndarray, codes: np.ndarray, group: np.ndarray) -> Folds:
    """At most five folds of `rows` with like shares of `codes`, none of which cuts a group; none of one group only."""
    n = min(5, len(np.unique(group[rows])))
    if n < 2:
        return []
    with warnings.catch_warnings():  # of classes that have fewer cells than there are folds: they are named in the note
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        folds = StratifiedGroupKFold(n).split(rows, codes[rows], group[rows])
        return [(rows[fit], rows[rest]) for fit, rest in folds]
