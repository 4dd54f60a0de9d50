"""Cell indices as VisCy has them: one parquet file with a row per cell, time and channel, read and written."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cellcohort.datasets.images.collection import Experiment
from cellcohort.files import whole
from cellcohort.messages import listed, several

SCHEMA = {
    **dict.fromkeys(("cell_id", "experiment", "store_path", "tracks_path", "fov", "well"), pa.string()),
    **{"y": pa.float32(), "x": pa.float32(), "z": pa.int16()},
    **dict.fromkeys(("perturbation", "channel_name"), pa.string()),
    **{"t": pa.int32(), "track_id": pa.int32(), "global_track_id": pa.string(), "lineage_id": pa.string()},
    **{"parent_track_id": pa.int32(), "hours_post_perturbation": pa.float32(), "interval_minutes": pa.float32()},
    **dict.fromkeys(("gene_name", "reporter", "sgRNA", "microscope", "marker", "organelle"), pa.string()),
    **dict.fromkeys(("pixel_size_xy_um", "pixel_size_z_um"), pa.float32()),
    **dict.fromkeys(("T_shape", "C_shape", "Z_shape", "Y_shape", "X_shape"), pa.int32()),
    **dict.fromkeys(("z_focus_mean", "norm_mean", "norm_std", "norm_median", "norm_iqr"), pa.float32()),
    **dict.fromkeys(("norm_max", "norm_min"), pa.float32()),
}
OURS = {  # their names, today's and earlier ones, and the names of the cell table
    "perturbation": "condition",
    "channel_name": "channel",
    "fov_name": "fov",
    "well_name": "well",
    "hours_post_perturbation": "hours",
    "hours_post_infection": "hours",
}
NEEDED = ("experiment", "store_path", "fov", "y", "x", "channel")
MADE = ("cell_id", "global_track_id", "lineage_id", "source_channels", "tracks_path", "interval_minutes")
MEASURED = [name for name in SCHEMA if name.startswith(("norm_", "pixel_size_")) or name.endswith("_shape")]
LEFT_OUT = (*MADE, *MEASURED)  # known and not needed: made of other columns, or measured of the images themselves
KEY = ("position", "track_id", "t")
SIZES = ("pixel_size_z_um", "pixel_size_xy_um")  # used where the plate gives none
SHARED = ("y", "x", "condition", "hours")  # what all channels of a cell have in common
CLOSE = 1e-3  # hours that times of 32 bits may be off
UNLIKE = 2.0  # how many times the minutes between frames real times may be apart, or be closer


def read_cell_index(path: str | Path) -> list[Experiment]:
    """Return the experiments of a cell index, whose rows take the place of tables of tracks.

    Parameters
    ----------
    path : str or Path
        A ``.parquet`` file. Paths of plates in it are relative to its folder, if they are not absolute. The channels of
        an experiment are in the order of how many experiments have them, and then of their names.

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such file, it lacks a column that is needed, or an experiment is on several plates.

    Warns
    -----
    UserWarning
        Columns hold neither texts, numbers nor truth values, or have a name for which another one stands, and are left
        out.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} (seen from {Path.cwd()}); give a cell index, a .parquet file.")
    names = _names(path)
    if missing := [name for name in NEEDED if name not in names]:
        theirs = {ours: name for name, ours in reversed(OURS.items())}
        raise ValueError(
            f"{path} is no cell index: it has no column {listed(theirs.get(name, name) for name in missing)}; it has "
            f"{listed(names.values())}."
        )
    if unlike := [name for name, kind in _kinds(path).items() if not _plain(kind) and name not in LEFT_OUT]:
        warnings.warn(
            f"{several(len(unlike), 'column')} of {path.name} hold neither texts, numbers nor truth values and are "
            f"left out: {listed(unlike)}.",
            stacklevel=2,
        )
    if hidden := [f"{name} ({names[OURS.get(name, name)]})" for name in _kinds(path) if name not in names.values()]:
        warnings.warn(
            f"{several(len(hidden), 'column')} of {path.name} stand for the same as another one, which is read, and "
            f"are left out: {listed(hidden)}. Rename them if they are something else.",
            stacklevel=2,
        )
    some = {*NEEDED[:3], "channel", "well", "t", "hours", "interval_minutes", *SIZES} & {*names}
    rows = _frame(_table(path, {name: names[name] for name in sorted(some)}))
    if not len(rows):
        raise ValueError(f"{path} has no rows; a row per cell, time and channel is needed.")
    needed = [*NEEDED, *(["well"] if not rows["fov"].astype(str).str.contains("/").all() else [])]
    if holes := {names[name]: n for name in needed if name in rows and (n := int(rows[name].isna().sum()))}:
        raise ValueError(f"{path} has missing values, by column: {holes}; fill them, or drop these rows.")
    common = rows.groupby("channel", observed=True)["experiment"].nunique()
    channels = sorted(common.index, key=lambda channel: (-common[channel], str(channel)))
    parts = rows.groupby("experiment", sort=False, observed=True)
    return [_experiment(path, str(name), own, channels) for name, own in parts]


def _experiment(path: Path, name: str, rows: pd.DataFrame, channels: Sequence[str]) -> Experiment:
    plates = rows["store_path"].unique().tolist()
    if len(plates) > 1:
        raise ValueError(
            f"experiment {name} of {path} is on {len(plates)} plates: {listed(plates)}; give each plate an experiment "
            "of its own."
        )
    _check_clock(path, name, rows)
    interval, start = _clock(rows)
    places = rows[["channel", *({"well", "fov"} & {*rows})]].drop_duplicates()
    parts = dict(iter(places.groupby("channel", observed=True)))
    seen = {str(channel): tuple(sorted({*_positions(parts[channel])})) for channel in channels if channel in parts}
    return Experiment(
        name=name,
        plate=path.parent / str(plates[0]),
        tracks=path,
        conditions={},
        interval_minutes=interval,
        start_hours=start,
        channels=tuple(seen),
        include=tuple(sorted({position for of_one in seen.values() for position in of_one})),
        exclude=(),
        hours="hours" if interval is None and "hours" in rows and rows["hours"].notna().any() else None,
        indexed=True,
        seen=seen,
        pixel_sizes=_pixel_sizes(path, name, rows),
    )


def _pixel_sizes(path: Path, name: str, rows: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return the size of a pixel along z, and along y and x, by position; 1 stands for a size that is not known."""
    if SIZES[1] not in rows:
        return {}
    places = rows[[one for one in ("well", "fov", *SIZES) if one in rows]].drop_duplicates()
    sizes = places.reindex(columns=[*SIZES]).set_axis(["z", "xy"], axis=1).apply(pd.to_numeric, errors="coerce")
    sizes = sizes.where((sizes > 0) & (sizes != 1)).assign(position=_positions(places))
    found = dict[str, tuple[float, float]]()
    for position, of_one in sizes.groupby("position"):
        if len(given := of_one["xy"].dropna().unique()) > 1:
            raise ValueError(
                f"position {position} of {name} in {path} has {SIZES[1]} of {listed(f'{size:g}' for size in given)}; "
                "give it one."
            )
        z, xy = (float(f"{of_one[axis].max():.6g}") for axis in ("z", "xy"))  # rounded, since stored as 32 bits
        found[str(position)] = z, xy
    return found


def _check_clock(path: Path, name: str, rows: pd.DataFrame) -> None:
    """Raise ValueError where the hours rise from frame to frame by times of another unit than the minutes say."""
    if not {"t", "hours", "interval_minutes"} <= {*rows}:
        return
    known = rows[rows["interval_minutes"] > 0].groupby([*({"well", "fov"} & {*rows})], observed=True)
    span = known[["t", "hours"]].max() - known[["t", "hours"]].min()
    span = span[(span["t"] > 0) & span["hours"].notna()]
    if not len(span):
        return
    step, minutes = (span["hours"] / span["t"]).median(), known["interval_minutes"].median().median()
    if not 1 / UNLIKE < step / (minutes / 60) < UNLIKE:
        raise ValueError(
            f"experiment {name} of {path}: hours_post_perturbation rises by {step:.4g} a frame, and interval_minutes="
            f"{minutes:g} says by {minutes / 60:.4g} hours. Give one in hours and the other in minutes, or leave out "
            "the one that is wrong."
        )


def _clock(rows: pd.DataFrame) -> tuple[float | None, float]:
    """Return the minutes between frames and the hours of the first, where the hours are that; else none, and 0."""
    if "interval_minutes" not in rows or "t" not in rows or not rows["interval_minutes"].gt(0).all():
        return None, 0.0
    interval = round(float(rows["interval_minutes"].iloc[0]), 4)
    if "hours" not in rows or rows["hours"].isna().all():
        return interval, 0.0
    begin = rows["hours"].to_numpy(float) - rows["t"].to_numpy(float) * interval / 60
    even = (rows["interval_minutes"] == rows["interval_minutes"].iloc[0]).all()
    start = round(float(np.median(begin)), 4)
    return (interval, start) if even and (np.abs(begin - start) <= CLOSE).all() else (None, 0.0)


def rows_of_index(path: Path) -> dict[str, pa.Table]:
    """Return the rows of each experiment of a cell index by its name, with the columns that are read."""
    kinds, names = _kinds(path), _names(path)
    read = {
        ours: name
        for ours, name in names.items()
        if name not in LEFT_OUT and ours != "store_path" and _plain(kinds[name])
    }
    table = _table(path, read).unify_dictionaries()
    code, experiments = pd.factorize(table["experiment"].to_pandas().astype(str))  # which may be numbers
    ends = np.cumsum(np.bincount(code, minlength=len(experiments))).tolist()
    table = table.take(np.argsort(code, kind="stable"))
    return {
        name: table.slice(begin, end - begin) for name, begin, end in zip(experiments, [0, *ends], ends, strict=False)
    }


def tracks_of_index(experiment: Experiment, table: pa.Table) -> pd.DataFrame:
    """Return the rows of an experiment of a cell index, once for each cell and time, as a table of tracks.

    Parameters
    ----------
    experiment : Experiment
        As :func:`read_cell_index` gives it. Of one with several channels, columns that differ between the channels of a
        cell are left out.
    table : pyarrow.Table
        Its rows, of :func:`rows_of_index`.

    Returns
    -------
    pandas.DataFrame
        With "position" and, where they are known, "t", "track_id", "parent_track_id" and "z"; "condition", "hours" and
        all labels of the index, among them "marker".
    """
    of_channels = table["channel"].to_pandas().astype(str).isin(experiment.channels)
    rows = _frame(table.filter(pa.array(of_channels)))
    rows = rows.assign(**{name: rows[name].astype(str) for name in ("experiment", "channel")})  # which may be numbers
    rows = rows.assign(position=_positions(rows)).drop(columns=["well", "fov"], errors="ignore")
    rows = rows.drop(columns=[name for name in rows if rows[name].isna().all()])
    if "z" not in rows or not rows["z"].any():  # 0 stands for none
        rows = rows.drop(columns="z", errors="ignore")
        if "z_focus_mean" in rows and rows["z_focus_mean"].notna().all():
            rows = rows.assign(z=rows["z_focus_mean"].astype(float))
    if len(experiment.channels) > 1:
        return _once(rows).drop(columns="channel")
    marker = rows["marker"] if "marker" in rows else pd.Series(None, rows.index, object)
    return rows.assign(marker=marker.astype(object).where(marker.notna(), rows["channel"]))


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep one row of each cell and time, and the columns in which all its rows are alike."""
    key = [name for name in KEY if name in rows]
    rows = rows.sort_values(key, kind="stable", ignore_index=True)
    again = rows.duplicated(key).to_numpy()
    texts = rows.astype(object).where(rows.notna(), None)
    differ = [name for name in rows if name != "channel" and (texts[name] != texts[name].shift())[again].any()]
    if unlike := [name for name in SHARED if name in differ]:
        row = rows[again & (texts[unlike[0]] != texts[unlike[0]].shift()).to_numpy()].iloc[0]
        raise ValueError(
            f"{listed(unlike)} of {row['experiment']} differ between the channels of a cell, such as {unlike[0]} in "
            f"{row['position']}. Give each cell one, or make each channel a sample of its own by data.channels=each."
        )
    return rows[~again].drop(columns=[name for name in differ if name not in key]).reset_index(drop=True)


def _positions(rows: pd.DataFrame) -> list[str]:
    """Names such as A/1/0, of a field that is named so or by its number in its well."""
    fov = rows["fov"].astype(str)
    if "well" not in rows:
        return fov.tolist()
    return np.where(fov.str.contains("/"), fov, rows["well"].astype(str) + "/" + fov).tolist()


def _kinds(path: Path) -> dict[str, pa.DataType]:
    try:
        schema = pq.read_schema(path)
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as parquet: {str(error)[:200]}") from error
    return dict(zip(schema.names, schema.types, strict=True))


def _names(path: Path) -> dict[str, str]:
    """Return the columns of an index by the names that they have here; an older name counts where there is no newer."""
    names, there = dict[str, str](), _kinds(path)
    for name in [*(name for name in OURS if name in there), *there]:
        names.setdefault(OURS.get(name, name), name)
    return names


def _plain(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating)
    return any(test(kind) for test in (*tests, pa.types.is_boolean, pa.types.is_null))


def _table(path: Path, names: dict[str, str]) -> pa.Table:
    """Read some columns under the names that they have here, texts as categories."""
    texts = [name for name, kind in _kinds(path).items() if pa.types.is_string(kind) or pa.types.is_large_string(kind)]
    table = pq.read_table(path, columns=list(names.values()), read_dictionary=texts)
    ours = {name: ours for ours, name in names.items()}
    return table.rename_columns([ours[name] for name in table.column_names])


def _frame(table: pa.Table) -> pd.DataFrame:
    """Return the rows as a frame; an empty text is a missing value."""
    rows = table.to_pandas()
    texts = [name for name in rows if not pd.api.types.is_numeric_dtype(rows[name])]
    return rows.assign(**{name: rows[name].astype(object).where(rows[name].ne(""), None) for name in texts})


def write_cell_index(frame: pd.DataFrame, experiments: Sequence[Experiment], images: pd.DataFrame, path: Path) -> None:
    """Write the cells of a collection as a cell index.

    Parameters
    ----------
    frame : pandas.DataFrame
        One row per cell, time and channel, as :class:`~cellcohort.datasets.images.index.Index` has it.
    experiments : sequence of Experiment
        Those of the collection.
    images : pandas.DataFrame
        For each row of `frame` what is known of its images: "store_path", pixel sizes and shapes, by their names in
        :data:`SCHEMA`.
    path : pathlib.Path
        The file to write, whole or not at all. Its columns are those of :data:`SCHEMA`, null where nothing is known,
        and the other columns of `frame` after them.

    Raises
    ------
    ValueError
        Numbers of tracks do not fit into 32 bits.
    """
    if (most := int(frame["track_id"].max())) >= 2**31:
        raise ValueError(f"a cell index has track_id as 32 bits, and the greatest here is {most}; number them anew.")
    of = {experiment.name: experiment for experiment in experiments}
    text = {name: frame[name].astype(str) for name in ("experiment", "fov", "well", "lineage")}
    cell = text["experiment"] + "_" + text["fov"] + "_"
    track = cell + frame["track_id"].astype(str)
    interval = {name: one.interval_minutes for name, one in of.items()}
    tracks = {name: str(one.tracks.resolve()) if isinstance(one.tracks, Path) else "" for name, one in of.items()}
    made = {
        "cell_id": track + "_" + frame["t"].astype(str),
        "tracks_path": text["experiment"].map(tracks),
        "fov": text["fov"].str.rpartition("/")[2],
        "z": frame["z"].round().astype(int),
        "perturbation": frame["condition"],
        "channel_name": frame["channel"],
        "global_track_id": track,
        "lineage_id": cell + text["lineage"].str.rpartition("/")[2],
        "hours_post_perturbation": frame["hours"],
        "interval_minutes": text["experiment"].map(interval),
        **{name: images[name].to_numpy() for name in images},
    }
    made.setdefault("microscope", frame.get("microscope", pd.Series("", frame.index)))
    ours = {"track", "lineage", "position", "plate", "condition", "channel", "hours", *made}
    whole_frame = pd.DataFrame(made, index=frame.index).join(frame[[name for name in frame if name not in ours]])
    columns, fields = [], []
    for name, kind in SCHEMA.items():
        values = whole_frame.pop(name) if name in whole_frame else pd.Series(None, frame.index, object)
        columns.append(pa.Array.from_pandas(values.astype(object) if kind == pa.string() else values, type=kind))
        fields.append(pa.field(name, kind))
    others = pa.Table.from_pandas(whole_frame, preserve_index=False)
    table = pa.table(columns, pa.schema(fields))
    for name in others.column_names:
        column = others[name]
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        table = table.append_column(name, column)
    with whole(path) as beside:
        pq.write_table(table, beside)
