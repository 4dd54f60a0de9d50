"""Trackio as a logger of Lightning: a local dashboard without an account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, override

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

if TYPE_CHECKING:
    import trackio


class TrackioLogger(Logger):
    """Log to Trackio, from rank 0.

    Parameters
    ----------
    project : str
        Project that the runs belong to.
    name : str
        Name of the run. A project may hold several runs of one name.

    References
    ----------
    `Trackio <https://github.com/gradio-app/trackio>`_, version 0.40 or later.
    """

    def __init__(self, project: str, name: str) -> None:
        super().__init__()
        self._project = project
        self._name = name
        self._run: trackio.Run | None = None

    @property
    @override
    def name(self) -> str:
        """Project that the runs belong to."""
        return self._project

    @property
    @override
    def version(self) -> str:
        """Name of the run."""
        return self._name

    @override
    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Start the run with a config."""
        del args, kwargs  # of Lightning; no logger here is given more
        self._start(params)

    @override
    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add a row of numbers."""
        (self._run or self._start({})).log(dict(metrics), step=step)

    def _start(self, config: Mapping[str, Any]) -> trackio.Run:
        import trackio  # here, since it is installed on request

        self._run = trackio.init(self._project, name=self._name, config=dict(config), embed=False)
        return self._run
