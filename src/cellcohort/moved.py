"""Modules of version 0.1.0 under their new names: an import of an old name gives the module that took its place."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import override

MOVED = {
    "chunked_loader": "loading.chunks",
    "gauges": "composition.metrics",
    "ledger": "composition.log",
    "loader": "loading.rows",
    "samples": "datasets.protocol",
    "scores": "evaluation.scores_file",
    "split": "datasets.split",
    "store": "datasets.stored.store",
    "stored": "datasets.stored.cells",
    "telemetry": "composition.callback",
    "timelapse": "datasets.images",
    "views": "augment",
}
"""New name of each module or package that scripts of version 0.1.0 import, both within this package."""


class MovedModules(MetaPathFinder, Loader):
    """Find modules by the names that they had in version 0.1.0, with a warning that gives the new name."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has moved; None for any other."""
        return None if new_name(fullname) is None else ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that took the place of the one named, which is loaded under its new name."""
        new = new_name(spec.name)
        warnings.warn(f"the module {spec.name} is now {new}; import it from there.", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(str(new))
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it was run when it was loaded under its new name."""
        module.__spec__ = self._spec


def find_moved_modules() -> None:
    """Let imports of the old names succeed from now on."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())  # before the finder of files, which would load submodules a second time


def new_name(fullname: str) -> str | None:
    """Return the new name of a module that has moved, or of one in a package that has; None for any other."""
    package, _, name = fullname.partition(".")
    head, _, tail = name.partition(".")
    if package != __package__ or head not in MOVED:
        return None
    return f"{package}.{MOVED[head]}" + (f".{tail}" if tail else "")
