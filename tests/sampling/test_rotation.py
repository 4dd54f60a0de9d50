"""The primary groups of chunk windows: in their shares, however many windows there were before."""

from __future__ import annotations

import numpy as np
import pytest

from cellcohort.sampling.chunked.rotation import RUN, run_of_windows
from cellcohort.sampling.planning.primary_groups import Groups
from cellcohort.sampling.rng import key_of

PER_WINDOW = 3
WEIGHTS = np.array([5.0, 1.0, 0.3, 2.0])


def first_of_each(groups: Groups, run: int, key: np.uint64) -> tuple[dict[int, int], dict[int, int]]:
    """How often each group of a run was primary before it, and how often it is in it."""
    primary, occurrence = run_of_windows(groups, PER_WINDOW, run, key)
    before, within = dict[int, int](), dict[int, int]()
    for group, times in sorted(zip(primary.ravel().tolist(), occurrence.ravel().tolist(), strict=True)):
        assert times == before.setdefault(group, times) + within.get(group, 0)
        within[group] = within.get(group, 0) + 1
    return before, within


@pytest.mark.parametrize("run", [0, 1000, 3_400_000_000, 3_500_000_000, 2**32 - 1, 2**32, 10**13, 2**55])
def test_groups_come_in_their_shares_however_many_runs_there_were(run: int) -> None:
    groups, key = Groups.of(WEIGHTS, key_of(7)), key_of(8)
    before, within = first_of_each(groups, run, key)
    asked = np.diff(groups.end, prepend=0)
    for group, times in before.items():
        share = run * RUN * PER_WINDOW * int(asked[group]) // 2**32
        assert abs(times - share) <= 20, group  # which grows as the logarithm of the runs
    after, _ = first_of_each(groups, run + 1, key)
    for group in before.keys() & after.keys():
        assert after[group] == before[group] + within[group]
