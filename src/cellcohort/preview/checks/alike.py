"""Labels that look like two spellings of one name."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

MOST_SPELLED = 300  # labels among which slips of spelling are looked for
_SHORTEST = 5  # letters of a name in which one slip is a slip
_LETTER = re.compile(r"[^\W\d_]")
_MARKS = r"[\s_/\\()\[\]{}'\"`:;|]"
_PUNCTUATION = re.compile(
    rf"(?<!\d){_MARKS}|{_MARKS}(?!\d)"  # between digits they tell numbers apart: 1_2 is not 12
    r"|[.,](?!\d)"
    r"|(?<=[^\W\d_])-(?=\w)|(?<=\w)-(?=[^\W\d_])"  # elsewhere it is a sign
)


def alike(labels: Sequence[Any]) -> list[list[Any]]:
    """Group labels that differ only in case, spaces, punctuation or one slip of spelling.

    A slip is one letter too many, too few, wrong or swapped with its neighbour, in names of five
    letters or more; the last letter may be too many, but not another one, as in ``plate_a`` and
    ``plate_b``. Digits, signs and decimal points are never slips.

    Parameters
    ----------
    labels : sequence
        Among more than 300 labels, slips of spelling are not looked for.

    Returns
    -------
    list of list
        Groups of two labels or more, each in the order given.
    """
    keys = [plain(label) for label in labels]
    leader = list(range(len(labels)))

    def root(i: int) -> int:
        while leader[i] != i:
            i = leader[i]
        return i

    first: dict[str, int] = {}
    for i, key in enumerate(keys):
        leader[i] = first.setdefault(key, i)
    distinct = list(first.items())
    if len(distinct) <= MOST_SPELLED:
        for place, (key, i) in enumerate(distinct):
            for other, j in distinct[place + 1 :]:
                if _slip(key, other):
                    leader[root(j)] = root(i)
    groups: dict[int, list[Any]] = {}
    for i, label in enumerate(labels):
        groups.setdefault(root(i), []).append(label)
    return [group for group in groups.values() if len(group) > 1]


def plain(label: Any) -> str:
    """A label without case, spaces and punctuation; signs and decimal points stay."""
    text = unicodedata.normalize("NFKC", str(label)).casefold().strip()
    return _PUNCTUATION.sub("", text) or text


def _slip(a: str, b: str) -> bool:
    if _LETTER.sub("", a) != _LETTER.sub("", b):
        return False
    short, long = sorted((a, b), key=len)
    if sum(c.isalpha() for c in short) < _SHORTEST or len(long) - len(short) > 1:
        return False
    i = next((k for k, (x, y) in enumerate(zip(short, long, strict=False)) if x != y), len(short))
    if len(short) < len(long):
        return short[i:] == long[i + 1 :]
    swapped = short[i + 1 : i + 2] + short[i : i + 1] + short[i + 2 :]
    return (short[i + 1 :] == long[i + 1 :] and i + 1 < len(short)) or swapped == long[i:]


def merge_option(column: str, merged: Mapping[Any, Any]) -> str:
    """What to type to merge labels of a column; labels that cannot be typed are for a config file."""
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
    """A label as it is typed inside brackets or braces."""
    return re.sub(r"([\\()\[\]{}:=,]|^\s|\s$)", r"\\\1", str(label))


def _written(label: Any) -> str:
    return json.dumps(label, ensure_ascii=False) if isinstance(label, str) else str(label)
