"""Names, numbers and options as messages tell them, and the check of an integer option."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral
from typing import Any


def listed(names: Iterable[Any], most: int = 20, show: Callable[[Any], str] = str, separator: str = ", ") -> str:
    """Return the first names, and how many more there are."""
    names = list(names)
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(map(show, names[:most])) + rest


def in_list(label: Any) -> str:
    """Return a label as a list in a sentence has it: in quotes where it holds a comma, a colon or a semicolon."""
    text = str(label)
    return repr(text) if re.search(r"[,:;]", text) else text


def several(n: int, what: str, plural: str | None = None) -> str:
    """Return a number and what it counts, such as ``1 track``, ``1,936 tracks``, ``2 batches`` or ``0 copies``.

    Parameters
    ----------
    n : int
    what : str
        One of what is counted; of several words the last is made plural.
    plural : str, optional
        Several of it, where no rule of spelling gives it.
    """
    return f"{n:,} {what if n == 1 else plural or plural_of(what)}"


def plural_of(word: str) -> str:
    """Return the plural of an English noun that is spelled by rule, such as ``batches``, ``epochs`` or ``copies``."""
    if word.endswith(("s", "x", "z", "sh", "ch")) and not word.endswith("poch"):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


def joined(names: Sequence[str]) -> str:
    """All names in a sentence, such as ``plate, drug and hours``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def meant(absent: Iterable[Any], there: Sequence[Any]) -> str:
    """``Did you mean 'Gem'? ``, of labels that are not there; empty where no other is near.

    Of a number or its text only the other is near: ``'1'`` may have been meant for 1, but not for 10.
    """
    texts = {label.casefold(): label for label in there if isinstance(label, str)}
    found, hint = [], ""
    for label in absent:
        if same := [one for one in there if _number(one) == _number(label) is not None]:
            hint = " (a number and the text of a number are different labels)"
        found += same or [texts[name] for name in get_close_matches(str(label).casefold(), texts, 1)]
    return f"Did you mean {listed(dict.fromkeys(found), show=repr)}{hint}? " if found else ""


def _number(label: Any) -> float | None:
    try:
        return float(label)
    except (TypeError, ValueError):
        return None


def spelled_plainly(name: str) -> str:
    """Return the name of a column in lower case, with underscores for spaces, hyphens and points."""
    return re.sub(r"[\s_.-]+", "_", name.strip().casefold())


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the options that are not the same: ``seed: 0 -> 1, together: null -> track``; empty where all are.

    Parameters
    ----------
    before, now : mapping of str to object
        Values by option; an option that is in one only reads "none" on the other side.
    """
    keys = [key for key in {**before, **now} if key not in before or key not in now or before[key] != now[key]]
    return listed(f"{key}: {_said(before, key)} -> {_said(now, key)}" for key in keys)


def typed_option(name: str, value: Any) -> str:
    """Return what to type in a shell to set an option of a script to a value or a list, in quotes where it needs them.

    ``run=outputs/one``, but ``'run=outputs/my run'`` and ``'data.columns.features=[speed,"Area (px)"]'``.
    """
    text = f"[{','.join(map(quoted, value))}]" if isinstance(value, list | tuple) else quoted(value)
    return shlex.quote(f"{name}={text}")


def quoted(value: Any) -> str:
    """Return a value as Hydra reads it from a command line, in quotes where it needs them."""
    text = str(value)
    if re.fullmatch(r"[\w./@?|-]+( [\w./@?|-]+)*", text, re.ASCII):
        return text
    # Hydra reads a backslash as it is, save before a quote
    return '"' + re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text) + '"'


def text_table(titles: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Rows in aligned columns, as plain text; no cell is wrapped or cut.

    Parameters
    ----------
    titles : sequence of str
        Headings of the columns.
    rows : iterable of sequence of str
        Cells; they are taken as they are, without any markup.
    right : sequence of int
        Columns that are aligned to the right, such as those of numbers.
    """
    from io import StringIO

    from rich.console import Console  # here, so that a mistyped command line is reported at once
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, title in enumerate(titles):
        table.add_column(Text(title), justify="right" if column in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    text = StringIO()
    Console(file=text, width=100_000, no_color=True).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _said(options: Mapping[str, Any], key: str) -> str:
    value = options.get(key, "none")
    if isinstance(value, list):
        return f"[{listed(value)}]"
    return "null" if value is None else str(value)


def whole_number(option: str, value: Any, least: int) -> int:
    """Return the value of an option that is an integer.

    Raises
    ------
    ValueError
        It is something else, below `least`, or has more than 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{option} must be an integer >= {least}, got {value!r}.")
    if int(value) >= 2**64:
        raise ValueError(f"{option} must be an integer below 2**64, got {value}.")
    return int(value)
