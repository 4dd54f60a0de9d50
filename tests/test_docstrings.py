"""Public docstrings follow numpydoc: parameters, what is returned, and errors have their sections."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from numpydoc.validate import validate

import cellcohort

CHECKS = {  # https://numpydoc.readthedocs.io/en/latest/validation.html
    *("GL03", "GL06", "GL07", "GL08", "GL10", "SS01", "SS02", "SS04", "SS05"),
    *("PR01", "PR02", "PR03", "PR04", "PR06", "PR08", "RT01", "RT02", "YD01"),
}
PUBLIC_MODULES = ("cellcohort.loading.rows", "cellcohort.loading.chunks", "cellcohort.sampling.axes.base")


def public_objects() -> Iterator[str]:
    """Yield the dotted names of what packages export, and of the methods of these."""
    packages = (name for _, name, package in pkgutil.walk_packages(cellcohort.__path__, "cellcohort.") if package)
    for name in (*packages, *PUBLIC_MODULES):
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", ()):
            thing = getattr(module, exported)
            if not callable(thing) or not getattr(thing, "__module__", "").startswith("cellcohort"):
                continue
            yield f"{name}.{exported}"
            if inspect.isclass(thing):
                yield from (f"{name}.{exported}.{method}" for method in vars(thing) if is_public(thing, method))


def is_public(cls: type, name: str) -> bool:
    """Whether a class defines a method or property of this name that it documents itself: it overrides none."""
    member: Any = inspect.getattr_static(cls, name)
    own = inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
    return own and not name.startswith("_") and not getattr(member, "__override__", False)


@pytest.mark.parametrize("name", sorted(set(public_objects())))
def test_a_public_docstring_passes_numpydoc(name: str) -> None:
    found = validate(name)
    elsewhere = any(text in found["docstring"] for text in ("Attributes\n", "Make one with :func:"))
    checks = CHECKS - {"PR01"} if elsewhere else CHECKS
    errors = [f"{code}: {text}" for code, text in found["errors"] if code in checks]
    assert not errors, "\n".join([name, *errors])
