from __future__ import annotations

import numpy as np
import pytest

import oracle
from cellcohort.sampling.rng import STEP, WHOLE, bits_of, floor_sum, key_of, key_of_three, mix, permuted, uniform

GOLDEN, MIX1, MIX2, MASK = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1


def plain_mix(key: int, value: int) -> int:
    z = ((key ^ (value * GOLDEN & MASK)) + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * MIX1) & MASK
    z = ((z ^ (z >> 27)) * MIX2) & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_mix_is_the_same_in_plain_python(key: int) -> None:
    for value in (0, 1, 12345, 2**63 + 7):
        assert int(mix(np.uint64(key), np.uint64(value))) == plain_mix(key, value)


def test_key_of_three_numbers_in_compiled_code() -> None:
    assert key_of_three(np.uint64(2**64 - 1), np.uint64(3), np.uint64(0)) == key_of(2**64 - 1, 3, 0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 1000])
def test_permutes(n: int) -> None:
    for seed in range(5):
        assert sorted(permuted(i, n, bits_of(n), key_of(seed)) for i in range(n)) == list(range(n))


@pytest.mark.parametrize("n", [2, 5, 10, 64])
def test_every_element_lands_everywhere(n: int) -> None:
    landed = np.zeros((n, n))
    for epoch in range(100 * n):
        for i in range(n):
            landed[i, permuted(i, n, bits_of(n), key_of(0, epoch))] += 1
    assert landed.min() > 55 and landed.max() < 150


def test_large_domain_stays_inside() -> None:
    n = 3_000_000_000
    found = {permuted(i, n, bits_of(n), key_of(3)) for i in range(1000)}
    assert len(found) == 1000 and max(found) < n and max(found) > n // 2


def test_keys_depend_on_order_and_length() -> None:
    keys = {int(key_of(*parts)) for parts in [(), (0,), (0, 0), (1, 2), (2, 1), (0, 3), (3, 0), (2**70 + 1,)]}
    assert len(keys) == 8


def test_uniform() -> None:
    u = uniform(key_of(1), np.arange(10_000, dtype=np.uint64))
    assert u.min() >= 0 and u.max() < 1
    assert np.abs(np.histogram(u, 10, (0, 1))[0] - 1000).max() < 150


@pytest.mark.parametrize("n", [0, 1, 7, 2**31, 3_000_000_000, 4_000_000_001, 2**32, 2**32 + 1, 10**12, 2**62 - 1])
def test_sums_of_the_golden_section_are_exact_however_many(n: int) -> None:
    for b in (0, 1, WHOLE - 1, WHOLE, 2 * WHOLE - 1):
        assert floor_sum(n, WHOLE, STEP, b) % 2**64 == oracle.floor_sum(n, WHOLE, STEP, b) % 2**64, b


def test_sums_are_those_that_are_added_up() -> None:
    rng = np.random.default_rng(0)
    for m in (1, 2, 7, 1000, WHOLE, 2**36):
        for a, b in rng.integers(0, 3 * m, (5, 2)).tolist():
            assert floor_sum(50, m, a, b) == sum((a * i + b) // m for i in range(50)), (m, a, b)
