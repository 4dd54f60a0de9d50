"""What a simple classifier, fitted on training cells, tells from the representation of held-out cells."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score, recall_score
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cellcohort.datasets.sample_columns import inseparable
from cellcohort.evaluation.score import Held, Score, bootstrap_interval, noted, one_per_group
from cellcohort.messages import in_list, several

Folds = list[tuple[np.ndarray, np.ndarray]]
NEIGHBOURS = 15
DRAWS = 5  # of the cell that stands for its group of near-copies
_NEEDS_WITHIN = "an experiment with two conditions that have cells on both sides of the split"
CONFOUNDED = (
    "confounded: no experiment holds two conditions, so that what differs between experiments can look like a "
    "difference between conditions; a score above chance in experiments that were left out says that the same "
    "difference comes back in new experiments, not that the condition causes it"
)


class Classifier(Protocol):
    """Labels of `others` (m, dim) from cells to fit on: `inputs` (n, dim), `labels` (n,), `copies` (n,)."""

    def __call__(
        self, inputs: np.ndarray, labels: np.ndarray, others: np.ndarray, copies: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the labels of `others`, int (m,)."""
        ...


def linear(
    inputs: np.ndarray,
    labels: np.ndarray,
    others: np.ndarray,
    copies: np.ndarray | None = None,  # noqa: ARG001  # part of the protocol
) -> np.ndarray:
    """Return the labels of `others` by logistic regression, the linear probe of Alain and Bengio (2016).

    Inputs are standardised over the cells that it is fitted on, and classes have the same weight however many
    cells they have.

    Parameters
    ----------
    inputs, others : numpy.ndarray of float, shape (n, dim) and (m, dim)
        Cells to fit on, and cells to tell the labels of.
    labels : numpy.ndarray of int, shape (n,)
        At least two different ones.
    copies : numpy.ndarray of int, shape (n,), optional
        Groups of near-copies; they do not change a linear fit much, and all cells are used.
    """
    probe = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=2000, tol=1e-3))
    with _few_cells_of_each_class():
        return probe.fit(inputs, labels).predict(others)


def nearest(inputs: np.ndarray, labels: np.ndarray, others: np.ndarray, copies: np.ndarray | None = None) -> np.ndarray:
    """Labels of `others` by the vote of the 15 nearest cells (Cover and Hart 1967), after standardising.

    Only one cell of each group of near-copies votes, so that the frames of one track are not 15 votes; the votes of
    up to five draws of that cell are added up. The share of a class among the neighbours is divided by its share of
    all cells that could vote, so that a rare class can win where it is denser than elsewhere. Parameters as for
    :func:`linear`.
    """
    copies = np.arange(len(labels)) if copies is None else copies
    scaler, classes = StandardScaler().fit(inputs), np.unique(labels)
    inputs, others = scaler.transform(inputs), scaler.transform(others)
    votes = np.zeros((len(others), len(classes)))
    for rows in draws_of(copies):
        voters = KNeighborsClassifier(min(NEIGHBOURS, len(rows))).fit(inputs[rows], labels[rows])
        share = np.bincount(np.searchsorted(voters.classes_, labels[rows])) / len(rows)
        votes[:, np.searchsorted(classes, voters.classes_)] += voters.predict_proba(others) / share
    return classes[np.argmax(votes, axis=1)]


def draws_of(copies: np.ndarray) -> Iterator[np.ndarray]:
    """Rows of one cell of each group, up to five times; once where every cell is a group of its own."""
    _, sizes = np.unique(copies, return_counts=True)
    for draw in range(min(DRAWS, int(sizes.max()))):
        yield one_per_group(copies, draw)


def condition_scores(inputs: np.ndarray, held: Held) -> list[Score]:
    """How well held-out cells tell their condition: by :func:`linear` and by :func:`nearest`.

    "within": fitted on the training cells of the same experiment (where a whole experiment was held
    out, on its other cells, in five folds that cut no group). "across": fitted on the training cells
    of all other experiments. The predictions for all experiments are pooled; the score is the balanced
    accuracy over the pooled cells, the mean over conditions of the share of cells that are told right,
    with an interval over experiments. So experiments need not hold every condition, or even two of them.
    "rarest" is that share for the condition with the fewest held-out cells of those that are scored.
    Conditions that cannot be scored are left out and named in the note, and so are cells without a condition
    (``missing="label"``), which are no condition of their own. Where a row is a cell in one channel, probes are fitted
    and scored for each marker by itself, and pooled.

    Parameters
    ----------
    inputs : numpy.ndarray of float, shape (n_cells, dim)
    held : Held
    """
    return [
        score
        for method in ("probe", "knn")
        for where in ("within", "across")
        for score in _condition(inputs, held, f"{method}_{where}")
    ]


def _condition(inputs: np.ndarray, held: Held, name: str) -> list[Score]:
    condition, across = held.condition, name.endswith("across")
    if condition is None or len(np.unique(condition.codes[~held.unlabelled])) < 2:
        return _no_condition_scores(name, "needs two conditions")
    if across and (reason := _alone(held)):
        return _no_condition_scores(name, reason)
    classify: Classifier = linear if name.startswith("probe") else nearest
    folds, left_out = _of_markers(held, _across if across else _within)
    labelled = ~held.unlabelled
    if n := int((~labelled).sum()):
        left_out = [f"{several(n, 'cell')} without a condition", *left_out]
    if not folds:
        needs = "two conditions that two experiments have" if across else _NEEDS_WITHIN
        confounded = "confounded: no experiment holds two conditions" if held.nested else ""
        return _no_condition_scores(name, noted(confounded, f"needs {needs}", left_out=left_out))
    told = _pooled(inputs, held, condition.codes, folds, classify)
    classes, counts = np.unique(told.truth, return_counts=True)
    rarest = classes[np.argmin(counts)]
    confounded = CONFOUNDED if held.nested else ""
    samples = "" if across else _not_apart(held)
    recall = f"recall of {condition.labels[rarest]}"
    scores = []
    for which, own, first in (("condition", classes, ""), ("rarest", np.array([rarest]), recall)):
        experiments = np.unique(told.experiment[np.isin(told.truth, own)])
        over = f"in {held.experiment.labels[experiments[0]]} only"
        if len(experiments) > 1:
            over = f"pooled over {len(experiments)} experiments"
        over += _each_marker(held)
        note = noted(first, told.chance(own), over, confounded, samples, left_out=left_out)
        scores.append(told.score(f"{which}_{name}", own, note))
    return scores


def _no_condition_scores(name: str, reason: str) -> list[Score]:
    return [Score(f"{which}_{name}", np.nan, True, 0, reason) for which in ("condition", "rarest")]


def _of_markers(held: Held, folds_of: Callable[[Held], tuple[Folds, list[str]]]) -> tuple[Folds, list[str]]:
    """Return the folds of each marker by itself where a row is a cell in one channel, and what is left out."""
    folds: Folds = []
    left_out = []
    for label, rows, part in held.of_markers():
        own, lost = folds_of(part)
        folds += [(rows[fit], rows[rest]) for fit, rest in own]
        left_out += [f"{label}{one}" for one in lost]
    return folds, left_out


def _each_marker(held: Held) -> str:
    return "" if held.marker is None else ", each marker by itself"


class _Told(NamedTuple):
    """Pooled predictions of held-out cells: one entry per cell."""

    truth: np.ndarray
    answer: np.ndarray
    experiment: np.ndarray
    n_classes: np.ndarray  # among which the classifier could choose

    def chance(self, classes: np.ndarray) -> str:
        """Balanced accuracy of answers drawn at random from the classes that the classifier knew."""
        value = np.mean([np.mean(1 / self.n_classes[self.truth == one]) for one in classes])
        return f"chance {value:.3g}"

    def score(self, name: str, classes: np.ndarray, note: str, higher_is_better: bool = True) -> Score:
        """Balanced accuracy over `classes`, with its interval over experiments."""
        _, place = np.unique(self.experiment, return_inverse=True)
        right = np.zeros((place.max() + 1, len(classes)))
        total = np.zeros_like(right)
        of = np.isin(self.truth, classes)
        where = (place[of], np.searchsorted(classes, self.truth[of]))
        np.add.at(right, where, (self.truth == self.answer)[of])
        np.add.at(total, where, 1)
        value = float((right.sum(0) / total.sum(0)).mean())
        having = total.sum(1) > 0
        low, high = bootstrap_interval(right[having], total[having])
        return Score(name, value, higher_is_better, int(of.sum()), note, low, high)


def _pooled(inputs: np.ndarray, held: Held, codes: np.ndarray, folds: Folds, classify: Classifier) -> _Told:
    """Predictions of all folds, each of the classes that its cells to fit on have."""
    parts = []
    for fit, rest in folds:
        known = np.unique(codes[fit])
        rest = rest[np.isin(codes[rest], known)]
        if len(known) > 1 and len(rest):
            answer = classify(inputs[fit], codes[fit], inputs[rest], held.copies[fit])
            parts.append(_Told(codes[rest], answer, held.experiment.codes[rest], np.full(len(rest), len(known))))
    if not parts:
        return _Told(*(np.empty(0, int) for _ in _Told._fields))
    return _Told(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _across(held: Held) -> tuple[Folds, list[str]]:
    """Each experiment in turn against all others, and the conditions that cannot be scored so."""
    condition = held.cells.column("condition")
    codes, experiment = condition.codes, held.experiment.codes
    there = np.unique(codes[~held.unlabelled])
    scored, left_out = [], []
    for code in there:
        fit, rest = (np.unique(experiment[(codes == code) & part]) for part in (held.training, ~held.training))
        if not len(rest):
            left_out.append(f"{in_list(condition.labels[code])} (no held-out cells)")
        elif not len(fit):
            left_out.append(f"{in_list(condition.labels[code])} (no training cells)")
        elif len(fit) == 1 and set(fit) == set(rest):
            left_out.append(f"{in_list(condition.labels[code])} (in {held.experiment.labels[fit[0]]} only)")
        else:
            scored.append(code)
    folds = []
    for code in np.unique(experiment) if len(scored) > 1 else ():
        own, known = experiment == code, np.isin(codes, scored)
        fit, rest = np.flatnonzero(held.training & ~own & known), np.flatnonzero(~held.training & own & known)
        if len(rest) and len(np.unique(codes[fit])) > 1:
            folds.append((fit, rest))
    return folds, left_out


def _within(held: Held) -> tuple[Folds, list[str]]:
    """Each experiment by itself, and the conditions that cannot be scored so."""
    condition = held.cells.column("condition")
    codes = condition.codes
    folds: Folds = []
    left_out = []
    for code in np.unique(held.experiment.codes):
        own, label = held.experiment.codes == code, held.experiment.labels[code]
        fit, rest = np.flatnonzero(held.training & own), np.flatnonzero(~held.training & own)
        folded = not len(fit)
        here = _folds(rest, codes, held.group) if folded else [(fit, rest)]
        present = np.unique(codes[own & ~held.unlabelled])
        scored = {int(c) for one, other in here for c in np.intersect1d(codes[one], codes[other])} & set(present)
        if len(present) < 2:
            left_out.append(f"{label} ({'one' if len(present) else 'no'} condition)")
        elif len(scored) < 2:
            left_out.append(f"{label} (fewer than two conditions on both sides of the split)")
        else:
            known = np.isin(codes, list(scored))
            folds += [(one[known[one]], other[known[other]]) for one, other in here]
            for lost in set(present.tolist()) - scored:
                side = "one group" if folded else "no held-out cells" if lost in codes[fit] else "no training cells"
                left_out.append(f"{condition.labels[lost]} of {label} ({side})")
    return folds, left_out


def _not_apart(held: Held) -> str:
    """Return what to note where each sample, such as a well, has one condition and cells on both sides of the split."""
    found = inseparable(held.cells, held.training)
    return "" if found is None else f"{found}; hold out whole ones by {found.option}"


def hours_scores(inputs: np.ndarray, held: Held) -> list[Score]:
    """How well hours are told in an experiment that a ridge regression has not seen (Hoerl and Kennard 1970).

    Fitted on the standardised training cells of all other experiments, scored on the held-out cells of each,
    averaged over experiments: R2 (0 where no better than the mean of these cells, and below where worse), the mean
    absolute error in hours, and the share of the error of predicting the mean time of the training cells that the
    fit removes (1 where no error is left, 0 where it does no better). Parameters as for :func:`condition_scores`.
    """
    hours, experiment = held.cells.hours, held.experiment
    reason = "the table has no hours" if hours is None else _alone(held)
    found, left_out, n = [], [], 0
    if hours is not None and not reason:
        known = np.isfinite(hours)
        for label, rows, part in held.of_markers():
            for code in np.unique(part.experiment.codes):
                own = part.experiment.codes == code
                fit = rows[part.training & ~own & known[rows]]
                rest = rows[~part.training & own & known[rows]]
                if not len(fit) or len(np.unique(hours[rest])) < 2:
                    why = (
                        "no training cells in other experiments"
                        if not len(fit)
                        else "held-out cells of fewer than two times"
                    )
                    left_out.append(f"{label}{experiment.labels[code]} ({why})")
                    continue
                scaler = StandardScaler().fit(inputs[fit])
                told = Ridge().fit(scaler.transform(inputs[fit]), hours[fit]).predict(scaler.transform(inputs[rest]))
                error = np.abs(hours[rest] - told).mean()
                beside = np.abs(hours[rest] - hours[fit].mean()).mean()
                found.append((code, r2_score(hours[rest], told), error, beside, 1 - error / beside))
                n += len(rest)
    if not found:
        note = noted(reason or "needs held-out cells of two times", left_out=left_out)
        return [Score(name, np.nan, up, 0, note) for name, up in HOURS.items()]
    of, of_each = np.array([code for code, *_ in found]), np.array([own for _, *own in found])
    means = np.stack([of_each[of == code].mean(axis=0) for code in np.unique(of)])  # over the markers of an experiment
    r2, error, beside, explained = means.T
    note = noted(f"mean over {several(len(means), 'experiment')}{_each_marker(held)}", left_out=left_out)
    mean_note = f"predicting the mean time of the training cells gives {beside.mean():.3g}"
    notes = {"hours_r2_across": note, "hours_mae_across": noted("hours", mean_note, note)}
    notes["hours_explained_across"] = noted(f"1 - error / {beside.mean():.3g} hours, the error of the mean time", note)
    scores = []
    for (name, up), values in zip(HOURS.items(), (r2, error, explained), strict=True):
        low, high = bootstrap_interval(values[:, None], np.ones((len(values), 1)))
        scores.append(Score(name, float(values.mean()), up, n, notes[name], low, high))
    return scores


HOURS = {"hours_r2_across": True, "hours_mae_across": False, "hours_explained_across": True}  # higher is better


def experiment_scores(inputs: np.ndarray, held: Held) -> list[Score]:
    """Balanced accuracy with which :func:`linear` tells the experiment of held-out cells; low where mixed.

    Where whole experiments were held out, it tells these apart, in five folds that cut no group. Where a row is a cell
    in one channel, experiments are told apart for each marker by itself.
    Parameters as for :func:`condition_scores`.
    """
    experiment, name = held.experiment, "experiment_probe"
    codes, rows = experiment.codes, np.flatnonzero(~held.training)
    if reason := _alone(held, rows):
        return [Score(name, np.nan, False, 0, reason)]
    folds, alone = _of_markers(held, _experiments)
    told = _pooled(inputs, held, codes, folds, linear)
    if not len(told.truth):
        return [Score(name, np.nan, False, 0, "needs two experiments with two groups of held-out cells")]
    present = np.unique(told.truth)
    value = recall_score(told.truth, told.answer, labels=present, average="macro", zero_division=0)
    lost = np.setdiff1d(np.unique(codes), present)
    left_out = [f"{in_list(experiment.labels[i])} (in one part of the split only)" for i in lost]
    note = noted(told.chance(present) + _each_marker(held), held.difference_of_conditions, left_out=[*left_out, *alone])
    return [Score(name, float(value), False, len(told.truth), note)]


def _experiments(held: Held) -> tuple[Folds, list[str]]:
    """All training cells against the held-out ones, or folds of these, and why there are none."""
    codes, rows = held.experiment.codes, np.flatnonzero(~held.training)
    if reason := _alone(held, rows):
        return [], [f"({reason})"]
    fit = np.flatnonzero(held.training)
    scored = np.intersect1d(codes[fit], codes[rows])
    if len(scored) > 1:
        return [(fit[np.isin(codes[fit], scored)], rows)], []
    return _folds(rows, codes, held.group), []


def _alone(held: Held, rows: np.ndarray | slice = slice(None)) -> str:
    return "" if len(np.unique(held.experiment.codes[rows])) > 1 else "needs two experiments"


def _folds(rows: np.ndarray, codes: np.ndarray, group: np.ndarray) -> Folds:
    """At most five folds of `rows` with like shares of `codes`, none of which cuts a group.

    There are none of one group only, and none where no two cells have one code.
    """
    n = min(5, len(np.unique(group[rows])), int(np.bincount(codes[rows], minlength=1).max()))
    if n < 2:
        return []
    with _few_cells_of_each_class():
        folds = StratifiedGroupKFold(n).split(rows, codes[rows], group[rows])
        return [(rows[fit], rows[rest]) for fit, rest in folds]


@contextmanager
def _few_cells_of_each_class() -> Iterator[None]:
    """Silence what scikit-learn says of classes with few cells: notes give chance, and what was left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        warnings.filterwarnings("ignore", "The number of unique classes is greater than", UserWarning)
        yield
