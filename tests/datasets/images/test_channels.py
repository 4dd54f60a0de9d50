"""Samples of one channel each: their table, patches, positives and splits, over plates of different channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from iohub.ngff import open_ome_zarr
from numpy.testing import assert_array_equal

from cellcohort.augment.image import ImageViews
from cellcohort.data.timelapse import Timelapse, load_cells, load_timelapse
from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.split import split
from cellcohort.preview.contact_sheet import sheet
from cellcohort.sampling import BatchSampler, ConditionBalanced, ExperimentAware
from cellcohort.sources.timelapse import Patches as Source
from plates import SHAPE, STORED, entry, pixels, three_plates, tracks_of, write_collection, write_plate

POSITIONS = ("A/1/0", "B/2/0")
PATCH = (1, 12, 16)
MARKERS = {
    ("one", "Phase"): "brightfield",
    ("one", "Marker"): "viral_sensor",
    ("two", "GFP"): "viral_sensor",
    ("three", "Phase"): "brightfield",
    ("three", "DAPI"): "DAPI",
    ("three", "GFP"): "TOMM20",
}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return three_plates(tmp_path_factory.mktemp("plates"))


@pytest.fixture
def load(collection: Path, tmp_path: Path) -> Callable[..., Patches]:
    def call(**options: Any) -> Patches:
        usual = {"path": collection, "patch": PATCH, "channels": "each", "normalise": "none", "tau_hours": (0.5, 2.0)}
        return load_timelapse(**{**usual, "cache": tmp_path / "cache", "augment": ImageViews(), **options})

    return call


def table(data: Patches) -> pd.DataFrame:
    return data.every_cell().cells.frame.astype({"experiment": str, "channel": str, "marker": str, "track": str})


def test_a_row_is_a_cell_in_one_channel_with_the_labels_of_the_collection(
    load: Callable[..., Patches], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load().every_cell()
    frame, n = table(data), len(tracks_of(POSITIONS))
    found = frame.groupby(["experiment", "channel"])["marker"].agg(lambda of: "/".join(sorted(set(of))))
    assert found.to_dict() == MARKERS
    assert (frame.groupby(["experiment", "channel"]).size() == n).all()
    assert frame.groupby("experiment")["track"].nunique().nunique() == 1
    assert not frame.duplicated(["track", "t", "channel"]).any()
    lines = frame["experiment"].map({"one": "A549", "two": "Huh7"})
    assert (frame["cell_line"].astype(object).where(frame["cell_line"].notna(), None) == lines).sum() == 3 * n
    assert frame["cell_line"].isna().sum() == 3 * n and set(frame.loc[frame["dose"].notna(), "experiment"]) == {"two"}
    assert set(frame.loc[frame["organelle"].notna(), "channel"]) == {"GFP"}
    assert frame["position"].nunique() == 6 and set(frame["plate"]) == set(STORED)
    read: list[tuple[int, ...]] = []
    decode = Chunks._read
    monkeypatch.setattr(Chunks, "_read", lambda self, keys: (read.extend(keys), decode(self, keys))[1])
    recorded = data.recorded(np.arange(len(data)))
    assert recorded.shape == (6 * n, 1, *PATCH) and data.shape == (1, *PATCH)
    assert len(read) == len(set(read))  # a chunk of several channels is decoded once for all of them
    for position, row in enumerate(frame.itertuples()):
        number = list(STORED).index(row.experiment)
        shape = (SHAPE[0], len(STORED[row.experiment]), *SHAPE[2:])
        image = pixels(10 * number + POSITIONS.index(row.fov), shape)
        image = image[row.t, STORED[row.experiment].index(row.channel), 0]
        y, x = (int(np.clip(np.floor(at - (size - 1) / 2 + 0.5), 0, full - size))
                for at, size, full in zip((row.y, row.x), PATCH[1:], image.shape, strict=True))  # fmt: skip
        assert_array_equal(recorded[position, 0, 0], image[y : y + PATCH[1], x : x + PATCH[2]])


@pytest.mark.parametrize("choice", ["same", "any", "other"])
def test_positives_are_later_cells_of_the_lineage_in_the_channels_that_are_asked_for(
    load: Callable[..., Patches], choice: str
) -> None:
    data = load(positive_channel=choice)
    frame, seen = table(data), []
    lineage, hours = frame["lineage"].astype(str).to_numpy(), frame["hours"].to_numpy()
    for epoch in range(40):
        rows = data._rows.numpy()
        later = data._lineages.draw(rows, (0, epoch, 0))
        assert (lineage[rows] == lineage[later]).all()
        assert (hours[later] - hours[rows] >= 0.5 - 1e-9).all() and (hours[later] - hours[rows] <= 2 + 1e-9).all()
        seen.append(frame["channel"].to_numpy()[rows] == frame["channel"].to_numpy()[later])
    share = pd.Series(np.mean(seen, axis=0)).groupby(frame["experiment"].to_numpy()[data._rows.numpy()]).mean()
    wanted = {"same": {"one": 1, "two": 1, "three": 1}, "other": {"one": 0, "three": 0}}
    wanted["any"] = {"one": 1 / 2, "two": 1, "three": 1 / 3}
    assert share.to_dict() == pytest.approx(wanted[choice], abs=0.03)
    if choice != "other":  # each channel has the anchors of the plate by itself
        assert len(data) == sum(len(load(channels="together", path=None, experiments=[alone(load, name)])) * len(of)
                                for name, of in STORED.items())  # fmt: skip


def alone(load: Callable[..., Patches], name: str) -> dict[str, Any]:
    folder = Path(load().chunks.fields[0].store).parent
    return entry(name, plate=str(folder / f"{name}.zarr"), tracks=str(folder / f"{name}.parquet"),
                 channels=[STORED[name][0]])  # fmt: skip


@pytest.mark.parametrize(("positive", "columns"), [("self", []), ("columns", ["condition"])])
@pytest.mark.parametrize("choice", ["same", "any", "other"])
def test_positives_of_other_kinds_keep_to_the_channels_too(
    load: Callable[..., Patches], positive: str, columns: list[str], choice: str
) -> None:
    options = {"positive": positive, "positive_columns": columns, "positive_channel": choice}
    if (positive, choice) == ("columns", "other"):
        with pytest.raises(ValueError, match=r"pairs\.different=\[channel\]"):
            load(**options)
        return
    data, frame = load(**options), table(load())
    meta = data.__getitems__(np.arange(len(data)))["meta"]
    rows, later = meta["row"].numpy(), meta["positive_row"].numpy()
    one, other = frame.iloc[rows].reset_index(), frame.iloc[later].reset_index()
    if positive == "self":
        assert (one["track"] == other["track"]).all() and (one["t"] == other["t"]).all()
        same = one["channel"] == other["channel"]
        assert {"same": same.all(), "any": 0 < same.mean() < 1, "other": not same.any()}[choice]
        assert ("two" in set(one["experiment"])) == (choice != "other")  # it has one channel
    else:
        assert (one["condition"] == other["condition"]).all() and (rows != later).all()
        assert (one["marker"] == other["marker"]).all() == (choice == "same")


@pytest.mark.filterwarnings("ignore:.*cells for validation have other conditions")  # there are few wells
@pytest.mark.parametrize("by", ["track", "position", "plate", ["experiment", "well"], ["cell_line", "marker"]])
def test_no_split_has_a_cell_in_one_channel_on_one_side_and_in_another_on_the_other(
    load: Callable[..., Patches], by: str | list[str]
) -> None:
    cells = load_cells(Path(load().chunks.fields[0].store).parent / "collection.yaml", patch=PATCH, channels="each",
                       tau_hours=(0.5, 2.0), cache=Path(load().chunks.fields[0].store).parent / "cache")  # fmt: skip
    cells.cells._missing = "label"  # some plates have no cell line
    training, validation = split(cells, by=by, fraction=0.4)
    for name in ("track", "lineage") if by == "track" else ("track", "lineage", *([by] if isinstance(by, str) else [])):
        sides = [set(part.cells.frame[name].astype(str)) for part in (training, validation)]
        assert sides[0] and sides[1] and not sides[0] & sides[1], name


def test_a_marker_that_is_held_out_has_no_cell_that_training_sees_in_another_channel(
    load: Callable[..., Patches],
) -> None:
    data = load()
    with pytest.warns(UserWarning, match=r"in neither part .* training has other cells of the same lineage"):
        training, validation = split(data, by="marker", held_out=["viral_sensor"])  # of one and two, with Phase of one
    assert validation.cells.column("experiment").present() == ["two"]
    assert not set(training.cells.frame["lineage"]) & set(validation.cells.frame["lineage"])
    with pytest.raises(ValueError, match=r"no cell is left for validation .* other cells of the same lineage"):
        split(data, by="marker", held_out=["DAPI"])


def test_brightness_is_that_of_the_channel(load: Callable[..., Patches]) -> None:
    raw, scaled = (load(normalise=name, patch=(1, 40, 48)).every_cell() for name in ("none", "plate"))
    frame, rows = table(raw).reset_index(drop=True), np.arange(len(table(raw)))
    before, after = raw.recorded(rows), scaled.recorded(rows)
    for (name, channel), own in frame.groupby(["experiment", "channel"]).groups.items():
        stored = STORED[name]
        shape, salt = (SHAPE[0], len(stored), *SHAPE[2:]), 10 * list(STORED).index(name)
        whole = np.stack([pixels(salt + i, shape)[:, stored.index(channel)] for i in range(2)]).astype(float)
        assert np.allclose(after[own], (before[own] - whole.mean()) / whole.std(), atol=1e-4)


def test_a_plate_that_is_listed_once_for_every_marker_has_each_track_once(collection: Path, tmp_path: Path) -> None:
    plate = {"plate": str(collection.parent / "three.zarr"), "tracks": str(collection.parent / "three.parquet")}
    entries = [entry(name, channels={name: name.lower()}, **plate) for name in ("Phase", "GFP")]
    options = {"patch": PATCH, "tau_hours": (0.5, 2.0), "cache": tmp_path, "channels": "each"}
    data = load_timelapse(experiments=entries, positive_channel="other", **options)
    frame = table(data)
    assert (frame.groupby(["track", "t"])["experiment"].nunique() == 2).all() and set(frame["plate"]) == {"three"}
    meta = data.__getitems__(np.arange(len(data)))["meta"]
    rows, later = (frame["experiment"].to_numpy()[meta[name].numpy()] for name in ("row", "positive_row"))
    assert (rows != later).all()
    training, validation = split(data)
    assert not set(training.cells.frame["track"]) & set(validation.cells.frame["track"])


@pytest.fixture
def listed_again(collection: Path, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    def call(change: Callable[[pd.DataFrame], pd.DataFrame]) -> list[dict[str, Any]]:
        """Two entries of one plate, the second with tracks of its own, and the plate by another path."""
        (tmp_path / "link.zarr").symlink_to(collection.parent / "three.zarr")
        tracks = collection.parent / "three.parquet"
        change(pd.read_parquet(tracks)).to_parquet(tmp_path / "own.parquet")
        return [
            entry("Phase", channels=["Phase"], plate=str(collection.parent / "three.zarr"), tracks=str(tracks)),
            entry("GFP", channels=["GFP"], plate=str(tmp_path / "link.zarr"), tracks=str(tmp_path / "own.parquet")),
        ]

    return call


def test_cells_of_a_plate_that_is_listed_again_with_a_copy_of_its_tracks_are_the_same(
    listed_again: Callable[..., list[dict[str, Any]]], load: Callable[..., Patches]
) -> None:
    data = load(path=None, experiments=listed_again(lambda rows: rows[rows["t"] > 0].assign(area=1.0)))
    frame = table(data)
    for name in ("track", "lineage"):  # which no split cuts in two
        assert (frame[frame["t"] > 0].groupby([name, "t"], observed=True)["experiment"].nunique() == 2).all()
    assert set(frame["plate"]) == {"three"}


def test_other_tracks_of_a_plate_that_is_listed_again_are_told_and_share_its_positions(
    listed_again: Callable[..., list[dict[str, Any]]], load: Callable[..., Patches]
) -> None:
    entries = listed_again(lambda rows: rows.assign(y=rows["y"].to_numpy()[::-1]))
    with pytest.warns(UserWarning, match=r"GFP and Phase are of the same plate with other tracks, in A/1/0, B/2/0: "):
        data = load(path=None, experiments=entries)
    frame = table(data)
    assert frame.groupby("track")["experiment"].nunique().max() == 1
    assert set(frame["position"].astype(str)) == {"Phase/A/1/0", "Phase/B/2/0"}


def test_cells_of_a_position_without_a_channel_are_no_samples_in_it_and_counted(tmp_path: Path) -> None:
    write_plate(tmp_path / "one.zarr", {"A/1/0": SHAPE, "B/2/0": SHAPE})
    with open_ome_zarr(tmp_path / "one.zarr/B/2/0", mode="r+") as position:
        position.rename_channel("Marker", "Empty")
    tracks_of(POSITIONS).to_parquet(tmp_path / "one.parquet")
    options: dict[str, Any] = {"patch": PATCH, "cache": tmp_path / "cache", "normalise": "none"}
    path, n = write_collection(tmp_path, entry("one")), len(tracks_of(["B/2/0"]))
    said = f"1 position of one without channel Marker: B/2/0. {n} cells there are no sample in it."
    with pytest.warns(UserWarning, match=said):
        source = Timelapse(path, channels="each", augment=ImageViews(), **options)
        data = source.dataset().every_cell()
    found = data.cells.frame.groupby(["fov", "channel"], observed=True).size()
    assert found.to_dict() == {("A/1/0", "Phase"): n, ("A/1/0", "Marker"): n, ("B/2/0", "Phase"): n}
    with pytest.warns(UserWarning, match=said):
        assert said in [remark.problem for remark in source.cells().remarks]
    with pytest.raises(
        ValueError,
        match=r"position B/2/0 of one .* no channel Marker; its channels are Phase, Empty.*data\.channels=each",
    ):
        load_timelapse(path, **options)
    path = write_collection(tmp_path, entry("one", channels=["Phase", "Merker"]))
    with pytest.raises(ValueError, match=r"position A/1/0 of one .* no channel Merker; its channels are Phase, Marker"):
        load_timelapse(path, channels="each", **options)


def test_axes_group_by_marker_and_stratify_by_condition_and_marker(load: Callable[..., Patches]) -> None:
    data = load()
    axes = {
        "experiment": ExperimentAware(column="marker"),
        "condition": ConditionBalanced(column=["condition", "marker"]),
    }
    frame = data.cells.frame
    for batch in BatchSampler(data.cells, axes, batch_size=16, num_batches=8):
        held = frame.iloc[batch]
        assert held["marker"].nunique() == 1 and (held["condition"].value_counts() == 8).all()


def test_the_contact_sheet_names_the_channel_and_marker_of_every_cell_and_the_channel_of_its_positive(
    load: Callable[..., Patches],
) -> None:
    data = load(positive_channel="other", augment=None)
    figure = sheet(data, BatchSampler(data.cells, batch_size=14), steps=(0,))
    (axes,) = figure.axes
    labels = [label.get_text().split("\n") for label in axes.get_xticklabels()]
    batch = data.__getitems__(BatchSampler(data.cells, batch_size=14).batch(0, 0))["meta"]
    frame = table(data)
    said = [(label[0], label[1] or label[0], label[2].removeprefix("> ")) for label in labels]
    rows, later = (frame.iloc[batch[name].numpy()] for name in ("row", "positive_row"))
    assert said == list(zip(rows["channel"], rows["marker"], later["channel"], strict=True))
    image = np.asarray(axes.images[0].get_array())
    assert image.min() == 0 and image.max() == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"channels": "some"}, r"channels='some' is not a choice; use together or each"),
        ({"channels": "together"}, r"differ in their number of channels: .*data\.channels=each"),
        ({"channels": "together", "positive_channel": "any"}, r"needs samples of one channel: set data\.channels=each"),
        ({"positive_channel": "none"}, r"positive_channel='none' is not a choice; use one of same, any, other"),
    ],
)
def test_what_makes_no_samples_is_refused(load: Callable[..., Patches], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load(**options)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": "A549"}, r"labels of one is 'A549'; write a mapping"),
        ({"labels": {"track": "a"}}, r"labels of one has track, which the cell table makes"),
        ({"labels": {"dose": ""}}, r"labels of one has no text for dose"),
        ({"labels": {"dose": 10}}, r"labels\.dose of one is 10, a int, which may not be what was typed"),
        ({"channels": {"Phase": {"channel": "a"}}}, r"channels\.Phase of one has channel, which the cell table makes"),
        ({"channels": {}}, r"channels of one is \[\]; write a list of names"),
    ],
)
def test_labels_that_are_none_are_refused(collection: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_timelapse(experiments=[entry("one", **changes)], channels="each")


def test_a_preparation_of_samples_of_one_channel_is_refused_in_a_sentence(collection: Path) -> None:
    with pytest.raises(ValueError, match=r"source\.collection\.channels=each: a store of patches .*data=timelapse"):
        Source(Timelapse(collection, channels="each"))
