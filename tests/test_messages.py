"""Words of messages: lists of names and numbers of things."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from cellcohort.messages import joined, listed, plural_of, several, typed_option, whole_number


@pytest.mark.parametrize(
    ("n", "what", "said"),
    [
        (1, "epoch", "1 epoch"),
        (4, "epoch", "4 epochs"),
        (2, "batch", "2 batches"),
        (0, "more copy", "0 more copies"),
        (3, "day", "3 days"),
        (2, "class", "2 classes"),
        (2, "box", "2 boxes"),
        (1936, "track", "1,936 tracks"),
    ],
)
def test_what_is_counted_is_spelled_as_one_or_several(n: int, what: str, said: str) -> None:
    assert several(n, what) == said


def test_a_plural_without_a_rule_can_be_given() -> None:
    assert several(2, "stratum", "strata") == "2 strata" and several(1, "stratum", "strata") == "1 stratum"


@pytest.mark.parametrize("word", ["cell", "place", "rank", "label", "experiment", "chunk", "time", "step", "draw"])
def test_most_words_take_an_s(word: str) -> None:
    assert plural_of(word) == f"{word}s"


def test_long_lists_end_with_the_number_left_out() -> None:
    assert listed("abcde", 2) == "a, b and 3 more" and listed("ab", 2, repr, "; ") == "'a'; 'b'"
    assert joined(["plate", "drug", "hours"]) == "plate, drug and hours" and joined([]) == ""


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "a  b",
        "a=b",
        "it's",
        "back\\slash",
        "end\\",
        "q\\'",
        'q\\"',
        "(x)",
        "[1,2]",
        "ä",
        "plain/dir-1.0",
        "p/*.h5ad",
    ],
)
def test_an_option_is_one_word_to_the_shell_and_hydra_reads_it_as_it_was(text: str) -> None:
    for value in (text, [text, "well"]):
        words = shlex.split(typed_option("split.by", value))
        (parsed,) = OverridesParser.create().parse_overrides(words)
        read = parsed.value()
        parts = read if isinstance(read, list) else [read]
        assert [str(getattr(part, "text", part)) for part in parts] == ([value] if isinstance(value, str) else value)
    assert typed_option("run", "outputs/my run") == "'run=outputs/my run'"


@pytest.mark.parametrize("value", ["2", 2.0, True, None, 1])
def test_what_is_no_integer_or_too_small_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=rf"^batch_size must be an integer >= 2, got {value!r}\.$"):
        whole_number("batch_size", value, 2)
    assert whole_number("batch_size", np.int64(2), 2) == 2
