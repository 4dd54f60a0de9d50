"""What the table cannot give, said in words before the first batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cellcohort.cells import Column
from cellcohort.messages import listed, several
from cellcohort.sampling.planning.quotas import BOTH, LEAKED, Quota
from cellcohort.sampling.planning.strata import Strata

MOST_MESSAGES = 20
MOST_SHOWN = 6  # in one warning


class ShortfallWarning(UserWarning):
    """A batch cannot hold what was asked, because the table has too few cells of some kind."""


def grouped(messages: Sequence[str], whose: str = "") -> str:
    """Write messages as one warning, of which a user reads the first few.

    Parameters
    ----------
    messages : sequence of str
        At least one.
    whose : str
        What they concern, such as "validation batches".
    """
    if len(messages) == 1:
        return f"{whose}: {messages[0]}" if whose else messages[0]
    more = [f"and {len(messages) - MOST_SHOWN} more of this kind."] if len(messages) > MOST_SHOWN else []
    lines = [f"{whose or 'batches'}: the table has too few cells for what is asked:", *messages[:MOST_SHOWN], *more]
    return "\n  - ".join(lines)


def shortfalls(
    strata: Strata,
    quotas: dict[int, list[Quota]],
    group: Column | None,
    shares: list[tuple[Column, np.ndarray]],
    leaky: float,
    batch_size: int,
) -> tuple[str, ...]:
    """One sentence for each thing that batches cannot hold as asked.

    Parameters
    ----------
    quotas : dict of int to list of Quota
        What the batches of each leading group hold.
    shares : list of (Column, numpy.ndarray)
        The column of each share axis and the share asked of each of its labels.
    """
    messages: list[str] = []
    bounds = np.searchsorted(strata.group, np.arange(strata.group.max() + 2))
    for leader, parts in quotas.items():
        where = f" in {group.name} {group.labels[leader]!r}" if group else ""
        low, high = bounds[leader], bounds[leader + 1]
        label, size = strata.label[low:high], strata.size[low:high]
        leak = sum(part.total * (part.leaky if part.part == BOTH else part.part == LEAKED) for part in parts)
        asked = round(leaky * batch_size, 1)
        if leak < asked - 1:
            messages.append(f"the others have {leak:g} cells for the {asked:g} asked of them in each batch{where}.")
        own = batch_size - leak
        if own > size.sum():
            messages.append(
                f"{several(size.sum(), 'cell')}{where} for {own:g} places in each of its batches: cells come "
                "repeatedly."
            )
            continue
        for level, (column, share) in enumerate(shares):
            messages += _uneven(column, share, strata.levels[label, level], size, own, where)
    left = len(messages) - MOST_MESSAGES
    return (*messages[:MOST_MESSAGES], *([f"and {several(left, 'more shortfall')} of this kind."] if left > 0 else []))


def _uneven(
    column: Column, share: np.ndarray, code: np.ndarray, size: np.ndarray, places: float, where: str
) -> list[str]:
    have = np.bincount(code, weights=size, minlength=len(share))
    asked = share * places
    short = np.flatnonzero((share > 0) & (have < asked))
    absent = [c for c in short if have[c] == 0]
    few = [c for c in short if have[c] > 0]
    messages = []
    if absent:
        rest = [c for c in range(len(share)) if have[c] > 0]
        only = "; it cannot be balanced there" if len(rest) == 1 else ""
        messages.append(
            f"no cells of {column.name} {_named(column, absent)}{where}, only {_named(column, rest)}{only}."
        )
    if few:
        counts = ", ".join(f"{have[c]:.0f} of {column.labels[c]!r} for {asked[c]:.1f} places" for c in few[:5])
        more = f" and {several(len(few) - 5, 'more label')}" if len(few) > 5 else ""
        messages.append(f"few cells of {column.name}{where}: {counts}{more}; other labels take these places.")
    return messages


def _named(column: Column, codes: list[Any], most: int = 5) -> str:
    return listed((column.labels[c] for c in codes), most, repr)
