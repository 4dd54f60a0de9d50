"""Labels: their order, and which label a typed key stands for."""

from __future__ import annotations

from typing import Any

import pytest

from cellcohort.labels import by_label, in_order


@pytest.mark.parametrize(
    ("labels", "sorted_labels"),
    [
        (["10", "9", "-1", "0.5"], ["-1", "0.5", "9", "10"]),
        (["10", "9", "b"], ["10", "9", "b"]),
        ([10, 9, 1], [1, 9, 10]),
        (["7", "007"], ["007", "7"]),
        ([], []),
    ],
)
def test_texts_of_numbers_are_in_the_order_of_the_numbers(labels: list[Any], sorted_labels: list[Any]) -> None:
    assert [labels[i] for i in in_order(labels)] == sorted_labels


@pytest.mark.parametrize(
    ("key", "labels", "label"),
    [
        (7, ["7", "8"], "7"),
        (7, ["007", "8"], "007"),
        (8, ["010", "x"], "010"),
        (1000.0, ["1e3", "x"], "1e3"),
        (0.1, ["0.10", "x"], "0.10"),
        (750, ["12:30", "x"], "12:30"),
        (True, ["on", "off"], "on"),
        (False, ["True", "False"], "False"),
        (1, [1, "1"], 1),
        ("a", ["a"], "a"),
    ],
)
def test_a_key_stands_for_the_one_label_that_is_read_so(key: Any, labels: list[Any], label: Any) -> None:
    assert by_label({key: 0.5}, labels) == ({label: 0.5}, [])


@pytest.mark.parametrize(
    ("key", "labels"),
    [
        (7, ["007", "7"]),
        (8, ["8", "010"]),
        (True, ["on", "True"]),
        (1000.0, ["1e3", "1000"]),
        (True, ["on", "yes"]),
        ("1", [1]),
        (1, ["on"]),
        (True, ["1"]),
        ("b", ["a"]),
    ],
)
def test_a_key_that_stands_for_none_or_for_several_is_unknown(key: Any, labels: list[Any]) -> None:
    assert by_label({key: 0.5}, labels) == ({}, [key])


def test_a_key_does_not_stand_for_a_label_that_another_key_names() -> None:
    assert by_label({7: 1, "007": 2}, ["7", "007"]) == ({"7": 1, "007": 2}, [])


def test_two_keys_for_one_label_are_refused() -> None:
    with pytest.raises(ValueError, match=r"10 and another key both stand for the label '010'"):
        by_label({8: 1, 10: 2}, ["010"])
