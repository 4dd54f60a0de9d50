"""The time of every row of a table, in hours: from the number of its frame, or from a column of real times."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from cellcohort.cells import numeric_values
from cellcohort.labels import by_label
from cellcohort.messages import several, spelled_plainly
from cellcohort.missing_values import MISSING_LABEL

TimeUnit = Literal["hours", "minutes", "days", "seconds", "timestamps"]
_HOURS = {"hours": 1.0, "minutes": 1 / 60, "days": 24.0, "seconds": 1 / 3600}
HOURS = ("hours", "hours_post_infection", "hours_post_perturbation", "hours_post_treatment", "hpi", "hpt")
_ZONE = r"[T ]\d{2}[^+-]*(?:[Zz]|[+-]\d{2}(?::?\d{2})?)$"  # a time of day with a time zone
_ROUNDED = 0.0051  # hours by which a time with two decimals may be off


class Times(NamedTuple):
    """How rows get their hours.

    Attributes
    ----------
    interval_minutes : float or None
        Minutes from one frame to the next, where rows have the number of their frame.
    start_hours : float or mapping of experiment to float
        Hours at time 0.
    unit : {"hours", "minutes", "days", "seconds", "timestamps"}
        Of a column of real times; those of timestamps count from the first one of each experiment.
    """

    interval_minutes: float | None = None
    start_hours: float | Mapping[Any, float] = 0.0
    unit: TimeUnit = "hours"

    def hours(
        self, table: pd.DataFrame, frame: str | None, real: str | None, experiment: pd.Series | None
    ) -> np.ndarray:
        """Hours of every row.

        Parameters
        ----------
        table : pandas.DataFrame
        frame, real : str or None
            The columns of frame numbers and of real times; where both are named, real times count.
        experiment : pandas.Series or None
            Label of every row.

        Returns
        -------
        numpy.ndarray of float64, shape (n_rows,)

        Raises
        ------
        ValueError
            An option is out of range or would be ignored, or values are no times.
        """
        if self.unit not in get_args(TimeUnit):
            raise ValueError(f"time_unit={self.unit!r} is not a choice; use one of {', '.join(get_args(TimeUnit))}.")
        start = self._start(experiment, len(table))
        if real is not None:
            if self.interval_minutes is not None:
                raise ValueError(
                    f"interval_minutes={self.interval_minutes} is of frames, but data.columns.hours={real!r} "
                    "names real times; leave out one of the two."
                )
            return start + (
                self._since(table[real], experiment) if self.unit == "timestamps" else self._real(table, real)
            )
        if self.unit != "hours":
            raise ValueError(f"time_unit={self.unit!r} is of real times; name their column with columns.hours.")
        if self.interval_minutes is None or not isfinite(self.interval_minutes) or self.interval_minutes <= 0:
            raise ValueError(
                f"interval_minutes={self.interval_minutes}: say the minutes from one frame to the next, such as "
                f"data.interval_minutes=30, or name a column of real times with data.columns.hours."
            )
        return start + numeric_values(table[frame], repr(frame)) * (self.interval_minutes / 60)

    def _start(self, experiment: pd.Series | None, n: int) -> np.ndarray | float:  # noqa: ARG002
        if not isinstance(self.start_hours, Mapping):
            return float(self.start_hours)
        if experiment is None:
            raise ValueError("start_hours by experiment, but data.columns.experiment is null; give one number.")
        labels = experiment.astype(object).where(experiment.notna(), MISSING_LABEL)
        present = labels.unique().tolist()
        found, unknown = by_label(self.start_hours, present)
        if unknown or len(found) < len(present):
            raise ValueError(
                f"start_hours is for {list(self.start_hours)}, the experiments of the table are {present}; give each "
                "one, once."
            )
        return labels.map(found).to_numpy(np.float64)

    def _real(self, table: pd.DataFrame, name: str) -> np.ndarray:
        if pd.api.types.is_datetime64_any_dtype(table[name]):
            raise ValueError(f"data.columns.hours={name!r} holds timestamps; say time_unit=timestamps.")
        if pd.api.types.is_timedelta64_dtype(table[name]):
            raise ValueError(f"data.columns.hours={name!r} holds time differences; convert them to numbers of hours.")
        return numeric_values(table[name], repr(name)) * _HOURS[self.unit]

    def _since(self, values: pd.Series, experiment: pd.Series | None) -> np.ndarray:
        """Hours since the first timestamp of the experiment."""
        if pd.api.types.is_numeric_dtype(values):
            raise ValueError(
                f"data.columns.hours={values.name!r} holds numbers, no timestamps; say time_unit=hours or another."
            )
        times = pd.to_datetime(values, format="ISO8601", utc=True, errors="coerce")
        if (bad := (times.isna() & values.notna()).to_numpy()).any():
            raise ValueError(
                f"data.columns.hours={values.name!r} holds no timestamps such as 2024-05-31 14:30 in "
                f"{several(int(bad.sum()), 'row')} of {len(values):,}, such as {values[bad].iloc[0]!r}. Write them so, "
                "or drop these rows; times that count from a start are numbers of hours, see data.time_unit."
            )
        if not pd.api.types.is_datetime64_any_dtype(values):
            texts = values.dropna().astype(str)
            zoned = texts.str.contains(_ZONE)
            if zoned.any() and not zoned.all():
                raise ValueError(
                    f"data.columns.hours={values.name!r} holds timestamps with a time zone in {int(zoned.sum())} of "
                    f"{len(texts):,} rows and without in others, such as {texts[zoned].iloc[0]!r} and "
                    f"{texts[~zoned].iloc[0]!r}: how far these are apart is not known. Give all a zone, or none."
                )
        first = (
            times.min() if experiment is None else times.groupby(experiment.to_numpy(), dropna=False).transform("min")
        )
        return ((times - first) / pd.Timedelta(hours=1)).to_numpy(np.float64)


def check_own_hours(table: pd.DataFrame, hours: np.ndarray, made: str, remedy: str, real: str | None = None) -> None:
    """Raise ValueError where a column of hours of a table holds other times than those that are used.

    Looked at is "hours", whose place these take, and where they are made from frame numbers also "Hours",
    "hours_post_infection", "hpi" and others of :data:`HOURS`, as :func:`~cellcohort.messages.spelled_plainly`
    gives them.

    Parameters
    ----------
    table : pandas.DataFrame
    hours : numpy.ndarray of float, shape (n_rows,)
    made, remedy : str
        What they are, and how the reader of the message says that the column is to be used, with ``{name}`` for its
        name.
    real : str, optional
        The column of real times that they come from; None where they are made from frame numbers.
    """
    for name in map(str, table.columns):
        if name == real or not (name == "hours" or (real is None and spelled_plainly(name) in HOURS)):
            continue
        own = pd.to_numeric(table[name].astype(object), errors="coerce").to_numpy(np.float64, na_value=np.nan)
        off = ~(np.abs(own - hours) <= _ROUNDED)
        if off.any():
            known = np.abs(own - hours)[~np.isnan(own)]
            far = f", by up to {known.max():g} h" if len(known) and known.max() > _ROUNDED else ""
            raise ValueError(
                f"the table's own column {name!r} differs from {made} in {several(int(off.sum()), 'row')} of "
                f"{len(table):,}{far}. Use it with {remedy.format(name=name)}, or rename it if it is something else."
            )
