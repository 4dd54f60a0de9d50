"""Tests of the names that modules had in version 0.1.0."""

from __future__ import annotations

import importlib
import sys

import pytest

from cellcohort.moved import MOVED

OLD = {**MOVED, "timelapse.collection": "datasets.images.collection", "views.image": "augment.image"}


@pytest.mark.parametrize("old", OLD)
def test_a_moved_module_is_found_by_its_old_name_with_a_warning_that_gives_the_new_one(old: str) -> None:
    new = importlib.import_module(f"cellcohort.{OLD[old]}")
    spec = new.__spec__
    own = [name for name in sys.modules if name.startswith("cellcohort.")]  # others have a `loader` too
    for name in [name for name in own if name.split(".")[1] in MOVED]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning) as told:
        module = importlib.import_module(f"cellcohort.{old}")
    assert f"cellcohort.{old} is now cellcohort.{OLD[old]};" in str(told[-1].message)
    assert module is new
    assert new.__spec__ is spec and new.__name__ == f"cellcohort.{OLD[old]}"


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"cellcohort\.no_such_module"):
        importlib.import_module("cellcohort.no_such_module")
