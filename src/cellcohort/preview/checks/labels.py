"""Labels that may be two spellings of one name."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from cellcohort.cells import Column
from cellcohort.messages import listed, several
from cellcohort.preview.checks import Finding
from cellcohort.sampling.protocol import Sampler

MOST_TYPOS = 300  # labels of a column, above which typing errors are not searched for
_MOST_GROUPS = 10  # groups of similar labels that are listed
_SHORTEST = 5  # letters of a name in which one different letter counts as a typing error
_LETTER = re.compile(r"[^\W\d_]")
_MARKS = r"[\s_/\\()\[\]{}'\"`:;|]"
_PUNCTUATION = re.compile(
    rf"(?<!\d){_MARKS}|{_MARKS}(?!\d)"  # between digits they separate numbers: 1_2 is not 12
    r"|[.,](?!\d)"
    r"|(?<=[^\W\d_])-(?=\w)|(?<=\w)-(?=[^\W\d_])"  # elsewhere it is a sign
)


def spellings(sampler: Sampler, mergeable: bool) -> Iterator[Finding]:
    """Find labels of the experiment, the condition and the axes that look like two spellings of one name.

    Parameters
    ----------
    sampler : Sampler
    mergeable : bool
        Whether the config of the data has ``merge_labels``.

    Yields
    ------
    Finding
        One for each column with such labels.
    """
    cells = sampler.cells
    roles = [role for role in ("experiment", "condition") if cells.has(role)]
    columns: dict[str, tuple[str, Column]] = {}
    for name in [*roles, *sampler.strata_columns]:
        column = cells.column(name)
        columns.setdefault(column.name, (name, column))
    for name, column in columns.values():
        counts = dict(zip(column.labels, column.counts().tolist(), strict=True))
        merged: dict[Any, Any] = {}
        groups: list[str] = []
        for group in alike([label for label in column.labels if counts[label]]):
            kept = max(group, key=lambda label: counts[label])
            groups.append(" and ".join(f"{label!r} ({several(counts[label], 'cell')})" for label in group))
            merged |= {label: kept for label in group if label != kept}
        if groups:
            yield Finding(
                f"These labels of {name} look alike, but count as different labels: "
                f"{listed(groups, _MOST_GROUPS, separator='; ')}.",
                "If they mean the same, add this (without those that do not):"
                if mergeable
                else "If they mean the same, give them one name in the table.",
                typed=merge_option(name, merged) if mergeable else "",
            )


def alike(labels: Sequence[Any]) -> list[list[Any]]:
    """Group labels that differ only in case, spaces, punctuation or one typing error.

    A typing error is one letter too many, missing, wrong or swapped with its neighbour, in names of five
    letters or more. At the end of a name a letter may be too many, but not another one, as in ``plate_a``
    and ``plate_b``. Different digits, signs and decimal points always make different names.

    Parameters
    ----------
    labels : sequence
        Among more than 300 labels, typing errors are not searched for.

    Returns
    -------
    list of list
        Groups of two labels or more, each in the order given.
    """
    keys, place = np.unique([plain(label) for label in labels], return_inverse=True)
    group = np.arange(len(keys))
    if 1 < len(keys) <= MOST_TYPOS:
        near = cdist(keys, keys, scorer=OSA.distance, score_cutoff=1) == 1
        typo = [(i, j) for i, j in np.argwhere(near) if i < j and _typing_error(keys[i], keys[j])]
        if typo:
            from scipy.sparse.csgraph import connected_components  # here, since it takes time and is seldom needed

            graph = np.zeros(near.shape, bool)
            graph[tuple(np.array(typo).T)] = True
            _, group = connected_components(graph, directed=False)
    groups: dict[int, list[Any]] = {}
    for label, one in zip(labels, group[place], strict=True):
        groups.setdefault(int(one), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def plain(label: Any) -> str:
    """Return a label without case, spaces and punctuation; signs and decimal points stay."""
    text = unicodedata.normalize("NFKC", str(label)).casefold().strip()
    return _PUNCTUATION.sub("", text) or text


def _typing_error(a: str, b: str) -> bool:
    """Whether names that are one edit apart differ by a letter, and not by the last one."""
    if _LETTER.sub("", a) != _LETTER.sub("", b) or min(len(_LETTER.findall(name)) for name in (a, b)) < _SHORTEST:
        return False
    return len(a) != len(b) or a[:-1] != b[:-1]


def merge_option(column: str, merged: Mapping[Any, Any]) -> str:
    """Return what to type to merge labels of a column; lines of a config file where labels cannot be typed.

    Parameters
    ----------
    column : str
    merged : mapping of label to label
        The label that replaces each.
    """
    pairs = ",".join(f"{typed(label)}:{typed(kept)}" for label, kept in merged.items())
    option = f"data.merge_labels={{{typed(column)}:{{{pairs}}}}}"
    try:
        understood = OverridesParser.create().parse_override(option).value() == {column: dict(merged)}
    except HydraException:
        understood = False
    if understood and "'" not in option:
        return f"'{option}'"
    pairs = ", ".join(f"{_written(label)}: {_written(kept)}" for label, kept in merged.items())
    return f"(in a recipe's data section) merge_labels: {{{_written(column)}: {{{pairs}}}}}"


def typed(label: Any) -> str:
    """Return a label as it is typed inside brackets or braces."""
    return re.sub(r"([\\()\[\]{}:=,]|^\s|\s$)", r"\\\1", str(label))


def _written(label: Any) -> str:
    return json.dumps(label, ensure_ascii=False) if isinstance(label, str) else str(label)
