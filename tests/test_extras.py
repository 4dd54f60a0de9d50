"""The base installation is the sampler; each other part needs an extra and says which."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cellcohort.extras import LIBRARIES, require

ROOT = Path(__file__).parents[1]
NAMES = {"scikit-learn": "sklearn", "hydra-core": "hydra", "pyyaml": "yaml", "umap-learn": "umap"}
NAMES |= {"hydra-submitit-launcher": "submitit", "concord-sc": "concord"}
BASE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {libraries!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import pandas as pd
from cellcohort.cells import CellTable
from cellcohort.sampling import BatchSampler, ConditionBalanced
frame = pd.DataFrame({{"experiment": list("ab" * 50), "condition": list("xxyy" * 25)}})
cells = CellTable.from_frame(frame)
print(len(next(iter(BatchSampler(cells, axes={{"condition": ConditionBalanced()}}, batch_size=8)))))
"""


def libraries(requirements: list[str]) -> set[str]:
    """The import names of requirements."""
    names = {text.split(">=")[0].split("[")[0] for text in requirements}
    return {NAMES.get(name, name.replace("-", "_")) for name in names}


def all_extras(project: dict) -> set[str]:
    return {name for texts in project["optional-dependencies"].values() for name in libraries(texts)} - {"cellcohort"}


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_library_that_is_imported_is_declared(project: dict) -> None:
    declared = libraries(project["dependencies"]) | all_extras(project)
    imported: dict[str, str] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                named = [str(node.module)]
            imported |= {name.split(".")[0]: str(path.relative_to(ROOT)) for name in named}
    ours = {*sys.stdlib_module_names, "cellcohort", "hydra_plugins"}
    assert {name: path for name, path in imported.items() if name not in declared | ours} == {}


def test_every_library_that_an_extra_checks_is_installed_by_it(project: dict) -> None:
    for extra, names in LIBRARIES.items():
        assert set(names) <= libraries(project["optional-dependencies"][extra]), extra


def test_the_sampler_needs_no_extra(project: dict) -> None:
    extra = all_extras(project) - {"scipy"}  # which numba imports, if it can
    code = BASE.format(libraries=extra - libraries(project["dependencies"]))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr


def test_a_comparison_waits_for_no_library_that_trains_or_scores() -> None:
    """They take most of a minute to import where a computer is slow, and nothing is printed meanwhile."""
    require("evaluate")
    heavy = {"torch", "lightning", "jax", "sklearn", "copairs", "scib_metrics"}
    code = f"""
import runpy, sys
runpy.run_path({str(ROOT / "scripts" / "compare.py")!r})
print(sorted({heavy} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIBRARIES, "stores", ("numpy", "not_there"))
    with pytest.raises(ModuleNotFoundError, match=r"^not_there is not installed.*pip install 'cellcohort\[stores\]'"):
        require("stores")
