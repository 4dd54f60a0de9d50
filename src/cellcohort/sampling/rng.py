"""Stateless randomness: every draw is a function of a key and an index.

Keys are 64-bit integers mixed with the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", OOPSLA 2014). Permutations of 0..n-1 are a few
invertible rounds (add, multiply by an odd number, xor with own high bits) on the least number of
bits that holds n, walked along its cycle until it lands below n (Black and Rogaway, "Ciphers with
arbitrary finite domains", CT-RSA 2002). Nothing is stored, and any element is had at once.

Multiples of the golden section, modulo 1, fill the unit interval most evenly. They are added up in whole numbers, so
that :func:`floor_sum` counts how many of them lie below a bound.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from cellcohort.compiled import compiled, inlined

Whole = int | np.integer[Any]  # what compiled functions take and give for whole numbers
GOLDEN = (math.sqrt(5) - 1) / 2
WHOLE = 2**32  # the unit interval, where places on it are whole numbers
STEP = round(GOLDEN * WHOLE) | 1
_U = np.uint64
_GOLDEN = _U(0x9E3779B97F4A7C15)
_MIX1 = _U(0xBF58476D1CE4E5B9)
_MIX2 = _U(0x94D049BB133111EB)


@inlined
def mix(key: np.uint64, value: np.uint64) -> np.uint64:
    """Return a new key from a key and a number."""
    z = (_U(key) ^ (_U(value) * _GOLDEN)) + _GOLDEN
    z = (z ^ (z >> _U(30))) * _MIX1
    z = (z ^ (z >> _U(27))) * _MIX2
    return z ^ (z >> _U(31))


@compiled
def bits_of(n: Whole) -> np.uint64:
    """Return the least number of bits, at least 1, that holds 0..n-1."""
    bits = _U(1)
    while (_U(1) << bits) < _U(n):
        bits += _U(1)
    return bits


@compiled
def permuted(index: Whole, n: Whole, bits: np.uint64, key: np.uint64) -> Whole:
    """Element `index` of the pseudo-random permutation of 0..n-1 that `key` names; ``bits = bits_of(n)``."""
    if n <= 1:
        return 0
    mask = (_U(1) << bits) - _U(1)
    half = (bits + _U(1)) >> _U(1)
    x = _U(index)
    while True:
        k = _U(key)
        for _ in range(4):
            k = k * _MIX1 + _GOLDEN  # its high bits are the good ones
            x = (x + (k >> _U(24))) & mask
            x = (x * ((k >> _U(40)) | _U(1))) & mask
            x ^= x >> half
        if x < _U(n):
            return np.int64(x)


@compiled
def permuted_each(index: np.ndarray, n: np.ndarray, salt: np.ndarray, key: np.uint64) -> np.ndarray:
    """For each i, element ``index[i]`` of the permutation of 0..n[i]-1 that `key` and ``salt[i]`` name."""
    out = np.empty(len(index), np.int64)
    for i in range(len(index)):
        out[i] = permuted(index[i], n[i], bits_of(n[i]), mix(key, _U(salt[i])))
    return out


@compiled
def stride(n: Whole, key: np.uint64) -> Whole:
    """Return a step through 0..n-1 that meets every number once and keeps any few of them far apart.

    Any q steps in a row land at least about ``n / (3 * q)`` apart, since the step is close to n
    times a number whose continued fraction ends in ones (the three-gap theorem).
    """
    kind = key % _U(6)
    step: Whole = np.int64(n / (np.float64(kind // _U(2)) + 1.618033988749895))
    step = max(np.int64(1), step if kind % _U(2) == 0 else n - step)
    while True:
        a: Whole = step
        b: Whole = n
        while b:
            a, b = b, a % b
        if a == 1:
            return step
        step += 1


@compiled
def floor_sum(n: Whole, m: Whole, a: Whole, b: Whole) -> Whole:
    """Sum of ``(a * i + b) // m`` over i from 0 to n - 1, in steps like those of Euclid's algorithm.

    It is exact modulo 2**64 for any `n` if `m` is at most 2**32, and for ``n * m`` below 2**63 otherwise; so is the
    difference of two of them.
    """
    total = 0
    while True:
        pairs = n // 2 * (n - 1) if n % 2 == 0 else (n - 1) // 2 * n
        total += pairs * (a // m) + n * (b // m)
        a, b = a % m, b % m
        rest = _U(a) * _U(n % m) + _U(b)
        n, b = n // m * a + np.int64(rest // _U(m)), np.int64(rest % _U(m))
        if n == 0:
            return total
        m, a = a, m


@inlined
def unit(key: np.uint64, value: np.uint64) -> float:
    """Return a number in [0, 1)."""
    return (mix(key, value) >> _U(11)) * (1.0 / (1 << 53))


@compiled
def uniform(key: np.uint64, values: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), one for each value of a uint64 array."""
    out = np.empty(values.size, np.float64)
    for i in range(values.size):
        out[i] = unit(key, values[i])
    return out


@lru_cache(maxsize=4096)
def key_of(*parts: int) -> np.uint64:
    """Return a key from whole numbers >= 0, such as a seed and an epoch; their order matters."""
    return np.uint64(_key_of(np.array([part % 2**64 for part in parts], np.uint64)))


@inlined
def key_of_three(first: np.uint64, second: np.uint64, third: np.uint64) -> np.uint64:
    """Return the key that `key_of` has for three numbers, in compiled code."""
    return mix(mix(mix(_U(3), first), second), third)


@compiled
def _key_of(parts: np.ndarray) -> np.uint64:
    key = _U(len(parts))
    for part in parts:
        key = mix(key, part)
    return key
