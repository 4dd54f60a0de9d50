"""One line where functions of this package are compiled."""

from __future__ import annotations

import numba
import pytest

from cellcohort.runtime import compilation
from cellcohort.runtime.compilation import told


def compiled(module: str) -> None:
    """Compile two new functions of a module."""
    for _ in range(2):

        def function() -> int:
            return 1

        function.__module__ = module
        numba.njit(function)()


@pytest.mark.parametrize(("module", "times"), [("cellcohort.sampling.rng", 1), ("statistics", 0)])
def test_one_line_says_that_the_sampler_is_compiled(
    module: str, times: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, however many jobs of a process compile some."""
    monkeypatch.setattr(compilation, "_said", False)
    for _ in range(2):
        with told():
            compiled(module)
    compiled(module)
    assert capsys.readouterr().err.count("compiling the sampler for this computer") == times
