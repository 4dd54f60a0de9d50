"""A W&B workspace of a sweep as code: what batches held against what was asked, the training, and the scores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from cellcohort.files import read_yaml
from cellcohort.messages import several

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace

STEP = "trainer/global_step"  # against which Lightning's logger defines every metric
HELD = "composition/global/"


def _files(directory: Path, name: str) -> list[Path]:
    """Files of this name of a run, or of all runs of a sweep."""
    return sorted(file for pattern in (name, f"*/{name}") for file in directory.glob(pattern) if file.is_file())


def logged(directory: Path) -> list[str]:
    """Names of all metrics that the runs of a sweep, or one run, logged.

    Raises
    ------
    FileNotFoundError
        There is no metrics.csv in the directory or one level below.
    """
    files = _files(directory, "metrics.csv")
    names = dict.fromkeys(str(name) for file in files for name in pd.read_csv(file, nrows=0))
    if not names:
        raise FileNotFoundError(
            f"{directory} has no metrics.csv in it or one level below; give the directory that a sweep printed as "
            "`sweep:`, or a run directory."
        )
    return [name for name in names if name not in ("epoch", "step")]


def place(directory: Path) -> dict[str, Any]:
    """Where on W&B the runs of a sweep, or one run, are: "project", "group" and what else their logger was told.

    Raises
    ------
    ValueError
        None of the runs was logged to W&B.
    """
    files = _files(directory, "config.yaml")
    for file in files:
        config = read_yaml(file) or {}
        if told := (config.get("logger") or {}).get("wandb"):
            return dict(told)
    raise ValueError(
        f"none of {several(len(files), 'run')} in {directory} was logged to W&B; train with logger=wandb, which is the "
        "default, or compare them by scripts/compare.py, which needs no W&B."
    )


def continued(directory: Path) -> dict[str, dict[str, Any]]:
    """Return of which run each run that continues another is the rest: "run", "wandb" (its id or None) and "step".

    Parameters
    ----------
    directory : pathlib.Path
        A sweep, or one run.

    Returns
    -------
    dict of str to dict
        By the name of the run that continues another.
    """
    files = _files(directory, "config.yaml")
    configs = {file.parent.name: read_yaml(file) or {} for file in files}
    return {name: config["continues"] for name, config in configs.items() if config.get("continues")}


def workspace(
    names: Sequence[str], entity: str, project: str, group: str | None, without: Sequence[str] = ()
) -> Workspace:
    """Lay the panels out.

    Parameters
    ----------
    names : sequence of str
        Metrics that runs logged, as :func:`logged` gives them.
    entity, project : str
        Where on W&B the runs are.
    group : str or None
        The W&B group whose runs are shown, which is the name of the sweep's directory; None shows all.
    without : sequence of str
        Ids of W&B runs that are not shown: those that others continue, whose scores are not of the whole training.

    Returns
    -------
    wandb_workspaces.workspaces.Workspace
        Lines and bars are means over the runs of a strategy, with their range.
    """
    import wandb_workspaces.reports.v2 as panels
    import wandb_workspaces.workspaces as parts

    by: dict[str, Any] = {
        "groupby": panels.Config("strategy"),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "minmax",
    }

    def lines(title: str, metrics: Sequence[str]) -> Any:
        return panels.LinePlot(title=title, x=STEP, y=list(metrics), **by)

    held = [lines(title, [HELD + name for name in own]) for title, own in _held(names)]
    curves = [lines(name, [name]) for name in names if name.startswith(("train/", "val/"))]
    scores = [name for name in names if name.startswith("eval/")]
    bars = [panels.BarPlot(title=name.removeprefix("eval/"), metrics=[name], **by) for name in scores]
    sections = [("What batches held", held), ("Training", curves), ("Scores", bars)]
    shown = [parts.Section(name, panels=own, is_open=True) for name, own in sections if own]
    shown_runs = [*([f"Group == {group!r}"] if group else []), *(f"ID != {number!r}" for number in without)]
    runs = parts.RunsetSettings(filters=" and ".join(shown_runs), groupby=[parts.Config("strategy")])
    return parts.Workspace(
        entity=entity, project=project, name=f"cellcohort {group or 'runs'}", sections=shown, runset_settings=runs,
        settings=parts.WorkspaceSettings(x_axis=STEP),
    )  # fmt: skip


def specification(made: Workspace) -> str:
    """Return what saving the workspace would send to W&B, as JSON."""
    view = made._to_model()
    spec = json.loads(view.spec.model_dump_json(by_alias=True, exclude_none=True))
    return json.dumps({"entity": made.entity, "project": made.project, "name": made.name, "spec": spec}, indent=1)


def _held(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Panels of the composition: what is asked beside what is held, and the shares of one column together."""
    own = [name.removeprefix(HELD) for name in names if name.startswith(HELD)]
    together: dict[str, list[str]] = {}
    for name in own:
        column, _, kind = name.partition("/")
        title = {"asked": f"{column}: asked and held", "held": f"{column}: asked and held"}.get(kind, name)
        title = f"{column}: shares" if kind.startswith(("share", "asked/")) else title
        title = f"{column}: distance from what was asked (0 to 1)" if kind == "distance" else title
        together.setdefault(title, []).append(name)
    return list(together.items())
