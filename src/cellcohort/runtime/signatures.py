"""What functions and classes declare of their parameters, read from their source: to import them may take seconds."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

READ = ("cellcohort", "lightning")  # packages whose source is read
IMPORTED = ("typing", "typing_extensions", "collections", "datetime", "pathlib", "pydantic")  # those that are fast


class Parameter(NamedTuple):
    """What is declared of a parameter.

    Attributes
    ----------
    annotation : object
        The type; Any where the source of `READ` alone does not tell it.
    may_be_none : bool
        Whether its default is None, or it has none.
    """

    annotation: Any
    may_be_none: bool


@cache
def declared(target: str) -> Mapping[str, Parameter]:
    """Return the parameters of a function, or of the constructor of a class, by name.

    Parameters
    ----------
    target : str
        Its full name, as ``_target_`` of a config has it.

    Returns
    -------
    dict of str to Parameter
        Empty where the source does not tell.
    """
    module, _, name = target.rpartition(".")
    if module.split(".")[0] not in READ or (found := _defined(module, name)) is None:
        return {}
    module, node = found
    if isinstance(node, ast.FunctionDef):
        return _of_function(node, module)
    if not isinstance(node, ast.ClassDef):
        return {}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            _, *own = _of_function(statement, module).items()  # the first is the object itself
            return dict(own)
    parameters: dict[str, Parameter] = {}
    for base in node.bases:
        parameters |= declared(f"{module}.{ast.unparse(base)}")
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                parameters[statement.target.id] = _parameter(statement.annotation, statement.value, module)
    return parameters


def _of_function(node: ast.FunctionDef, module: str) -> dict[str, Parameter]:
    arguments = node.args
    placed = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(placed) - len(arguments.defaults)) + [*arguments.defaults, *arguments.kw_defaults]
    return {
        argument.arg: _parameter(argument.annotation, default, module)
        for argument, default in zip([*placed, *arguments.kwonlyargs], defaults, strict=True)
    }


def _parameter(annotation: ast.expr | None, default: ast.expr | None, module: str) -> Parameter:
    none = default is None or (isinstance(default, ast.Constant) and default.value is None)
    return Parameter(Any if annotation is None else _evaluated(annotation, module), none)


def _evaluated(expression: ast.expr, module: str) -> Any:
    try:
        return eval(compile(ast.Expression(expression), module, "eval"), vars(builtins).copy(), _Names(module))
    except (NameError, TypeError, AttributeError):  # it uses what is known to other packages only
        return Any


class _Names(dict[str, Any]):
    """The values of the names of a module, as far as they are types of Python or made of these."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        if (found := _defined(self._module, name)) is None:
            raise KeyError(name)
        module, node = found
        if node is None:
            return getattr(import_module(module), name)
        if isinstance(node, ast.expr):
            return _evaluated(node, module)
        return Any


@cache
def _defined(module: str, name: str) -> tuple[str, ast.stmt | ast.expr | None] | None:
    """Return in which module a name is defined and as what; None in place of it for what can be imported."""
    for node in _statements(_source(module)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    root = str(node.module).split(".")[0]
                    if root in READ:
                        return _defined(str(node.module), alias.name)
                    return str(node.module), None if root in IMPORTED else node
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            return module, node.value
    return None


def _statements(tree: ast.Module | ast.If) -> Iterator[ast.stmt]:
    """Return the statements of a module, those below a condition such as TYPE_CHECKING too."""
    for node in tree.body:
        if isinstance(node, ast.If):
            yield from _statements(node)
        else:
            yield node


@cache
def _source(module: str) -> ast.Module:
    """Return the source of a module, without importing it or those that it is in; an empty one if it is not there."""
    root, *below = module.split(".")
    spec = find_spec(root)
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place, *below)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"))
    return ast.Module([], [])
