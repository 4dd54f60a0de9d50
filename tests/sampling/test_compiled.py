"""Compiled functions can be read: arrays that belong together are one argument."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest

from cellcohort.compiled import teller
from cellcohort.sampling.rng import bits_of, mix

SOURCE = Path(__file__).parents[2] / "src" / "cellcohort"
MOST_PARAMETERS = 7


def compiled_functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(one) in ("compiled", "inlined") for one in node.decorator_list
            ):
                yield f"{path.relative_to(SOURCE)}:{node.name}", node


def parameters(function: ast.FunctionDef) -> int:
    arguments = function.args
    assert not arguments.vararg and not arguments.kwarg
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])


def test_no_compiled_function_has_more_than_seven_parameters() -> None:
    found = {name: parameters(function) for name, function in compiled_functions()}
    assert len(found) > 60
    assert {name: n for name, n in found.items() if n > MOST_PARAMETERS} == {}


def test_one_module_says_how_functions_are_compiled() -> None:
    """Where a division may raise, numba counts the references to every array of a function, which takes longer."""
    importing = {
        path.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "numba"
    }
    assert importing == {"compiled.py"}
    assert mix.targetoptions["error_model"] == bits_of.targetoptions["error_model"] == "numpy"  # inlined, and not


@pytest.mark.parametrize(
    ("module", "rank", "times"),
    [("cellcohort.sampling.rng", "0", 1), ("statistics", "0", 0), (None, "0", 0), ("cellcohort.sampling.rng", "1", 0)],
)
def test_one_line_says_that_the_sampler_is_compiled(
    module: str | None, rank: str, times: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, also in a script that uses the sampler alone."""
    monkeypatch.setattr(teller, "told", False)
    monkeypatch.setenv("RANK", rank)
    for _ in range(2):

        def function() -> int:
            return 1

        function.__module__ = module  # type: ignore[assignment]
        numba.njit(function)()
    assert caplog.text.count("compiling the sampler for this computer") == times
