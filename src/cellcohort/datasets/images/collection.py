"""A collection of experiments, as it is written down in YAML: which plate, which tracks, and what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from omegaconf import OmegaConf

from cellcohort.datasets.tables.times import TimeUnit
from cellcohort.messages import several

NEEDED = ("name", "tracks", "conditions", "channels")
OPTIONAL = (
    *("plate", "interval_minutes", "hours", "time_unit", "start_hours"),
    *("include", "exclude", "coordinates", "labels"),
)
OWN = (  # columns of the cell table, which no label may be called
    *("experiment", "condition", "hours", "track", "lineage", "position", "plate", "well", "fov", "channel"),
    *("t", "z", "y", "x", "track_id", "parent_track_id"),
)
Coordinates = Literal["pixel", "micrometer"]


@dataclass(frozen=True)
class Experiment:
    """One plate of tracked cells.

    Attributes
    ----------
    name : str
    plate : pathlib.Path
        An OME-Zarr HCS plate, version 0.4 or 0.5.
    tracks : pathlib.Path or dict of str to pathlib.Path
        One table with a column "position", or one table per position ("A/1/0").
    conditions : dict of str to tuple of str
        Wells ("A/1") of each condition.
    interval_minutes : float or None
        From one frame to the next; None where images have one frame only.
    start_hours : float
        ``hours = start_hours + t * interval_minutes / 60``.
    channels : tuple of str
        Names of the channels that make an input, in its order.
    include : tuple of str or None
        The positions to use; None for all.
    exclude : tuple of str
        Positions to leave out.
    coordinates : {"pixel", "micrometer"} or None
        Unit of "z", "y" and "x" in the tracks. None stands for pixels, with a warning where they look like
        another unit.
    hours : str or None
        Column of the tracks with real times, which are used instead of `interval_minutes`.
    time_unit : str
        Of that column, see :class:`~cellcohort.datasets.tables.times.Times`.
    labels : dict of str to str
        Labels of all its cells, by column of the cell table.
    channel_labels : dict of str to (dict of str to str)
        By channel, what it shows (its "marker") and other labels, where each channel is a sample of its own.
    indexed : bool
        Whether `tracks` is a cell index, whose rows of this experiment have the conditions and labels themselves.
    seen : dict of str to tuple of str
        By channel, the positions with cells in it, in a cell index; others may lack the channel.
    pixel_sizes : dict of str to (float, float)
        By position, the size of a pixel in micrometers, along z and along y and x, that a cell index gives; NaN where
        it gives none.
    """

    name: str
    plate: Path
    tracks: Path | dict[str, Path]
    conditions: dict[str, tuple[str, ...]]
    interval_minutes: float | None
    start_hours: float
    channels: tuple[str, ...]
    include: tuple[str, ...] | None
    exclude: tuple[str, ...]
    coordinates: Coordinates | None = None
    hours: str | None = None
    time_unit: TimeUnit = "hours"
    labels: dict[str, str] = field(default_factory=dict)
    channel_labels: dict[str, dict[str, str]] = field(default_factory=dict)
    indexed: bool = False
    seen: dict[str, tuple[str, ...]] = field(default_factory=dict)
    pixel_sizes: dict[str, tuple[float, float]] = field(default_factory=dict)

    def with_channel(self, channel: str) -> Experiment:
        """Return the same experiment with one of its channels, whose name and labels all cells then have."""
        labels = {} if self.indexed else {"marker": channel, **self.labels, **self.channel_labels.get(channel, {})}
        labels["channel"] = channel
        include = self.seen.get(channel, self.include)
        return replace(self, channels=(channel,), labels=labels, channel_labels={}, include=include, seen={})

    @property
    def in_pixels(self) -> str:
        """How messages say that coordinates in micrometers are made pixels."""
        if self.indexed:
            return "write y and x of the cell index in pixels"
        return "set coordinates: micrometer for this experiment in the collection"

    def condition_of(self, well: str) -> str | None:
        """Return the condition of a well; None where it has none."""
        return next((label for label, wells in self.conditions.items() if well in wells), None)

    def uses(self, position: str) -> bool:
        """Whether a position is among those to use."""
        return (self.include is None or position in self.include) and position not in self.exclude


def read_collection(
    path: str | Path | None, experiments: Sequence[Mapping[str, Any]] | None = None
) -> list[Experiment]:
    """Read and check a collection.

    Parameters
    ----------
    path : str or Path, optional
        A YAML file with a list `experiments`; or, with one entry in `experiments`, the plate of that
        entry. Paths inside are relative to the folder of `path`.
    experiments : sequence of mapping, optional
        The entries themselves, where `path` is no YAML file.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such file, an entry lacks or has too many keys, or a value is out of range; the
        plates themselves are not looked at.
    """
    path = None if path is None else Path(path)
    if path is not None and path.suffix in (".yaml", ".yml"):
        if experiments is not None:
            raise ValueError(f"{path} lists experiments, and data.experiments does too; give one of the two.")
        experiments = _entries(path)
    elif experiments is None:
        raise ValueError(
            f"path={path} is not a collection: give data.path (source.collection.path where one is prepared) a .yaml "
            "file that lists experiments, or list them in data.experiments (a recipe does, for one plate)."
        )
    elif path is not None:
        if len(experiments) != 1 or "plate" in experiments[0]:
            raise ValueError(
                f"data.path={path} is the plate of one entry of data.experiments that names none, but there are "
                f"{len(experiments)}, or it names one; leave out data.path or that `plate`."
            )
        experiments = [{**experiments[0], "plate": path.name}]
    elif lacking := [
        str(entry.get("name", number)) for number, entry in enumerate(experiments, 1) if not entry.get("plate")
    ]:
        raise ValueError(
            f"no plate is named for experiment {', '.join(lacking)}; set data.path=<plate>, which does for one "
            "experiment, or `plate` in each entry of data.experiments."
        )
    folder = Path() if path is None else path.parent
    found = [_experiment(entry, folder, number) for number, entry in enumerate(experiments, start=1)]
    if not found:
        raise ValueError(f"{path or 'data.experiments'} lists no experiment; name at least one.")
    if twice := [name for name, n in Counter(e.name for e in found).items() if n > 1]:
        raise ValueError(f"two experiments are called {', '.join(twice)}; give each a name of its own.")
    return found


def check_as_many_channels(experiments: Sequence[Experiment]) -> None:
    """Raise ValueError where experiments have different numbers of channels, which make no inputs of one shape."""
    if len({len(e.channels) for e in experiments}) > 1:
        counts = ", ".join(f"{e.name} {list(e.channels)}" for e in experiments)
        raise ValueError(
            f"experiments differ in their number of channels: {counts}. Choose as many for each, or make each channel "
            "a sample of its own by data.channels=each."
        )


class _AsTyped(yaml.SafeLoader):
    """Load every value of a YAML file as the text that was typed: YAML itself makes True of on, and 8 of 010."""

    yaml_implicit_resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}  # noqa: RUF012  # merge keys only

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<")
        if twice := [key for key, n in keys.items() if n > 1]:
            raise ValueError(f"{', '.join(twice)} is there more than once, near{node.start_mark}")
        return super().construct_mapping(node, deep)


def _entries(path: Path) -> list[Mapping[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} (seen from {Path.cwd()}); give the YAML file of a collection.")
    try:
        content = OmegaConf.to_container(
            OmegaConf.create(yaml.load(path.read_text("utf-8-sig"), _AsTyped)), resolve=True
        )
    except Exception as error:  # of several libraries: not YAML, or a value that refers to nothing
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(content, Mapping) or set(content) != {"experiments"}:
        there = ", ".join(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(f"{path} has {there} at its top; it must have `experiments`, a list, and nothing else.")
    entries = content["experiments"]
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise ValueError(f"`experiments` of {path} is no list of entries; begin each with `- name:`.")
    return entries


def _experiment(entry: Mapping[str, Any], folder: Path, number: int) -> Experiment:
    name = _name(entry.get("name", f"number {number}"), "name", f"number {number}")
    given = {key: value for key, value in entry.items() if not (value is None or (key in OPTIONAL and _is_none(value)))}
    if missing := [key for key in (*NEEDED, "plate") if given.get(key) is None]:
        raise ValueError(f"experiment {name} lacks {', '.join(missing)}; an entry needs {', '.join(NEEDED)} and plate.")
    if unknown := [str(key) for key in entry if key not in NEEDED + OPTIONAL]:
        raise ValueError(
            f"experiment {name} has {', '.join(unknown)}; an entry may have {', '.join(NEEDED + OPTIONAL)}."
        )
    if "interval_minutes" in given and "hours" in given:
        raise ValueError(
            f"experiment {name} has both interval_minutes and hours: give one, the minutes from frame to frame or the "
            "column of the tracks that holds real times."
        )
    interval = given.get("interval_minutes")
    channels, channel_labels = _channels(given["channels"], name)
    return Experiment(
        name=name,
        plate=folder / str(given["plate"]),
        tracks=_tracks(given["tracks"], folder, name),
        conditions=_conditions(given["conditions"], name),
        interval_minutes=None if interval is None else _number(interval, "interval_minutes", name, above=0.0),
        start_hours=_number(given.get("start_hours", 0.0), "start_hours", name),
        channels=channels,
        include=None if "include" not in given else _names(given["include"], "include", name),
        exclude=() if not given.get("exclude") else _names(given["exclude"], "exclude", name),
        hours=None if "hours" not in given else _name(given["hours"], "hours", name),
        time_unit=given.get("time_unit", "hours"),
        coordinates=_coordinates(given.get("coordinates"), name),
        labels=_labels(given.get("labels", {}), "labels", name),
        channel_labels=channel_labels,
    )


def _is_none(value: Any) -> bool:
    """Whether a text is one of those with which YAML writes that there is nothing."""
    return isinstance(value, str) and value in ("", "~", "null", "Null", "NULL")


def _name(value: Any, what: str, name: str) -> str:
    """Return a name as it was typed; of a number or a truth value that is not known."""
    if isinstance(value, str):
        return value
    raise ValueError(
        f"{what} of {name} is {value!r}, a {type(value).__name__}, which may not be what was typed (YAML makes 8 of "
        "010, 750 of 12:30 and True of on); write it in quotes, or in the YAML file of a collection, where names are "
        "taken as typed."
    )


def _tracks(value: Any, folder: Path, name: str) -> Path | dict[str, Path]:
    if isinstance(value, str):
        return folder / value
    if not isinstance(value, Mapping) or not value or not all(isinstance(file, str) for file in value.values()):
        raise ValueError(
            f"tracks of {name} is {value!r}; write the path of a table, or {{A/1/0: one.csv, A/2/0: two.csv}}."
        )
    return {str(position): folder / file for position, file in value.items()}


def _coordinates(value: Any, name: str) -> Coordinates | None:
    if value is not None and value not in get_args(Coordinates):
        raise ValueError(f"coordinates of {name} is {value!r}; use {' or '.join(get_args(Coordinates))}.")
    return value


def _conditions(value: Any, name: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"conditions of {name} is {value!r}; write {{mock: [A/1], infected: [A/2, B/2]}}.")
    conditions = {
        _name(label, "a condition", name): _names(wells, f"conditions.{label}", name) for label, wells in value.items()
    }
    of: dict[str, list[str]] = {}
    for label, wells in conditions.items():
        for well in wells:
            of.setdefault(well, []).append(label)
    if clash := [f"{well} ({' and '.join(labels)})" for well, labels in of.items() if len(labels) > 1]:
        raise ValueError(
            f"{several(len(clash), 'well')} of {name} in two conditions: {', '.join(clash)}; give each one."
        )
    return conditions


def _channels(value: Any, name: str) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """Return the channels of a list, or of a mapping of channel to marker or labels, and the labels of each."""
    if not isinstance(value, Mapping):
        return _names(value, "channels", name), {}
    channels = _names(list(value), "channels", name)
    labels = {}
    for channel, shown in zip(channels, value.values(), strict=True):
        what = f"channels.{channel}"
        said = shown if isinstance(shown, Mapping) else {"marker": shown}
        labels[channel] = {} if shown is None or _is_none(shown) else _labels(said, what, name)
    return channels, labels


def _labels(value: Any, what: str, name: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} of {name} is {value!r}; write a mapping of column to label: {{cell_line: A549}}.")
    labels = {_name(key, f"one of {what}", name): _name(label, f"{what}.{key}", name) for key, label in value.items()}
    if taken := [key for key in labels if key in OWN]:
        raise ValueError(
            f"{what} of {name} has {', '.join(taken)}, which the cell table makes by itself; give it another name."
        )
    if empty := [key for key, label in labels.items() if not label.strip()]:
        raise ValueError(f"{what} of {name} has no text for {', '.join(empty)}; give one, or leave it out.")
    return labels


def _names(value: Any, what: str, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise ValueError(f"{what} of {name} is {value!r}; write a list of names, such as [A/1].")
    # channels of a plate without names are numbers; below 8 these are what was typed
    most = 8 if what == "channels" else 0
    names = tuple(str(one) if type(one) is int and one < most else _name(one, f"one of {what}", name) for one in value)
    if twice := [label for label, n in Counter(names).items() if n > 1]:
        raise ValueError(f"{what} of {name} has {', '.join(twice)} more than once; name each once.")
    return names


def _number(value: Any, what: str, name: str, above: float | None = None) -> float:
    if isinstance(value, str):  # as a file of a collection gives it
        with suppress(ValueError):
            value = float(value)  # as typed: YAML makes 24 of 030, and 750 of 12:30
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not number or (above is not None and value <= above):
        needed = "a number" if above is None else f"a number above {above:g}"
        raise ValueError(f"{what} of {name} is {value!r}; it must be {needed}.")
    return float(value)
