from __future__ import annotations

import copy
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cellcohort.augment.image import ImageViews
from cellcohort.data.timelapse import load_cells, load_timelapse
from cellcohort.datasets.images import index as index_module
from cellcohort.datasets.images.chunks import Chunks
from cellcohort.datasets.images.patches import Patches
from cellcohort.datasets.images.positives import Lineages
from cellcohort.datasets.positives import TauDraw
from cellcohort.datasets.split import split
from cellcohort.loading.rows import make_loader
from cellcohort.sampling import BatchSampler, TemporallyEnriched
from cellcohort.sampling.batch import Batch
from plates import SHAPE, entry, pixels, tracks_of, two_plates, write_collection, write_plate

PATCH = (1, 12, 16)
TAU = (0.5, 2.0)
SALT = {("one", "A/1/0"): 0, ("one", "B/2/0"): 1, ("two", "A/1/0"): 5, ("two", "B/2/0"): 6}
STORED = {"one": (SHAPE, [0, 1]), "two": ((10, 3, 1, 64, 56), [2, 1])}  # channels Phase, Marker


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_plates(tmp_path_factory.mktemp("plates"))


@pytest.fixture
def load(collection: Path, tmp_path: Path) -> Callable[..., Patches]:
    def call(**options: Any) -> Patches:
        usual = {"path": collection, "patch": PATCH, "tau_hours": TAU, "normalise": "none", "cache": tmp_path / "cache"}
        return load_timelapse(**{**usual, **options})

    return call


def table(data: Patches) -> pd.DataFrame:
    return data.every_cell().cells.frame


def cut_out(row: Any, patch: tuple[int, int, int] = PATCH) -> np.ndarray:
    """The patch of a row of the table, cut out of the pixels that were written."""
    shape, channels = STORED[row.experiment]
    image = pixels(SALT[row.experiment, row.fov], shape)[row.t][channels]
    corner = [
        min(max(int(np.floor(at - (size - 1) / 2 + 0.5)), 0), n - size)
        for at, size, n in zip((row.z, row.y, row.x), patch, image.shape[1:], strict=True)
    ]
    return image[(slice(None), *(slice(at, at + size) for at, size in zip(corner, patch, strict=True)))]


def ancestors(frame: pd.DataFrame) -> dict[str, set[str]]:
    """Every track with those it descends from and itself."""
    mother = {}
    for row in frame.drop_duplicates("track").itertuples():
        name = f"{row.experiment}/{row.fov}/{row.parent_track_id}"
        mother[row.track] = name if row.parent_track_id >= 0 else None
    found = {}
    for track in mother:
        line, at = set(), track
        while at is not None:
            line.add(at)
            at = mother[at]
        found[track] = line
    return found


@pytest.mark.parametrize("patch", [(1, 12, 16), (1, 7, 9), (1, 40, 48)])
def test_patches_are_those_of_the_images_around_the_cells_in_the_order_of_the_channels(
    load: Callable[..., Patches], patch: tuple[int, int, int]
) -> None:
    data = load(patch=patch).every_cell()
    recorded = data.recorded(np.arange(len(data)))
    assert recorded.shape == (len(data), 2, *patch) and recorded.dtype == np.float32
    assert data.channels == ("Phase", "Marker")
    for position, row in enumerate(table(data).itertuples()):
        assert np.array_equal(recorded[position], cut_out(row, patch))


def test_the_index_tells_hours_conditions_tracks_and_families(load: Callable[..., Patches]) -> None:
    frame = table(load())
    assert len(frame) == sum(len(tracks_of(("A/1/0", "B/2/0"), shape)) for shape, _ in STORED.values())
    start, step = frame["experiment"].map({"one": 1.0, "two": 0.0}), frame["experiment"].map({"one": 0.5, "two": 1.0})
    assert np.allclose(frame["hours"], start.astype(float) + frame["t"] * step.astype(float))
    assert (frame["condition"] == frame["well"].map({"A/1": "mock", "B/2": "infected"})).all()
    assert (frame["track"] == frame["experiment"].astype(str) + "/" + frame["fov"].astype(str) + "/"
            + frame["track_id"].astype(str)).all()  # fmt: skip
    family = frame["track_id"].map({1: 1, 3: 1, 4: 1, 2: 2, 5: 2, 6: 6}).astype(str)
    place = frame["experiment"].astype(str) + "/" + frame["fov"].astype(str)
    assert (frame["lineage"] == place + "/" + family).all()


def test_sisters_whose_mother_has_no_row_are_a_family(tmp_path: Path) -> None:
    write_plate(tmp_path / "one.zarr", {"A/1/0": SHAPE})
    tracks = tracks_of(["A/1/0"])
    tracks[tracks["track_id"] != 1].to_parquet(tmp_path / "one.parquet")
    path = write_collection(tmp_path, entry("one", conditions={"mock": ["A/1"]}))
    frame = table(load_timelapse(path, patch=PATCH, cache=tmp_path / "cache"))
    family = frame.drop_duplicates("track").set_index("track_id")["lineage"]
    assert family[3] == family[4] and family.nunique() == 3


@pytest.mark.parametrize("tau", [(0.5, 2.0), (0.0, 1.0), (1.5, 6.0)])
def test_positives_of_an_epoch_are_of_the_same_cell_or_descend_from_it_within_the_range_of_tau(
    load: Callable[..., Patches], tau: tuple[float, float]
) -> None:
    data = load(tau_hours=tau)
    frame = table(data)
    line, drawn = ancestors(frame), set()
    for batch in BatchSampler(data.cells, {"time": TemporallyEnriched()}, batch_size=32):
        made = data.__getitems__(batch)
        rows, later = made["meta"]["row"].numpy(), made["meta"]["positive_row"].numpy()
        assert (rows != later).all()
        for row, other, hours in zip(rows, later, made["meta"]["tau_hours"].numpy(), strict=True):
            one, two = frame.iloc[row], frame.iloc[other]
            assert one["lineage"] == two["lineage"] and one["track"] in line[two["track"]]
            assert two["hours"] - one["hours"] == pytest.approx(hours)
            assert tau[0] <= hours <= tau[1] and hours > 0
            drawn.add((one["track_id"], two["track_id"]))
    assert {(1, 3), (1, 4), (2, 5)} <= drawn  # daughters count for their mothers


def test_anchors_are_exactly_the_cells_that_have_a_positive(load: Callable[..., Patches]) -> None:
    data = load()
    frame = table(data)
    line = ancestors(frame)
    expected = []
    for _, group in frame.reset_index().groupby("lineage", observed=True):
        for row in group.itertuples():
            tau = group["hours"] - row.hours
            inside = group[(tau >= TAU[0] - 1e-9) & (tau <= TAU[1] + 1e-9) & (tau > 0)]
            if any(row.track in line[track] for track in inside["track"]):
                expected.append(row.index)
    assert np.array_equal(data._rows.numpy(), np.sort(expected))
    without = data.every_cell().__getitems__(np.arange(len(frame)))["meta"]
    alone = np.setdiff1d(np.arange(len(frame)), expected)
    assert (without["positive_row"].numpy()[alone] == alone).all()
    assert np.isnan(without["tau_hours"].numpy()[alone]).all()


def test_longer_times_are_drawn_less_often_by_the_decay(load: Callable[..., Patches]) -> None:
    data = load(tau_hours=(0.5, 1.5), tau_decay_hours=1.0)
    frame = table(data)
    of = data.cells.frame
    anchors = np.flatnonzero(((of["experiment"] == "one") & (of["track_id"] == 1) & (of["t"] == 0)).to_numpy())
    rows, tau = data._rows.numpy()[anchors], []
    for epoch in range(3000):
        tau += list(frame["hours"].to_numpy()[data._lineages.draw(rows, (0, epoch))] - 1.0)
    share = np.array([np.isclose(tau, hours).mean() for hours in (0.5, 1.0, 1.5)])
    weight = np.exp([-0.5, -1.0, -1.5])
    assert share == pytest.approx(weight / weight.sum(), abs=0.03)


def test_two_daughters_do_not_make_their_time_twice_as_likely() -> None:
    """A mother at 0 and 1 hours, whose two daughters are there at 2 hours."""
    track, hours = np.array([0, 0, 1, 2]), np.array([0.0, 1.0, 2.0, 2.0])
    lineages = Lineages(track, hours, np.array([-1, 0, 0]), (1.0, 2.0), TauDraw("exponential", 1e9))
    drawn = np.array([lineages.draw(np.array([0]), (0, epoch))[0] for epoch in range(3000)])
    assert [np.mean(drawn == row) for row in range(4)] == pytest.approx([0, 0.5, 0.25, 0.25], abs=0.04)


def test_draws_depend_on_the_seed_the_epoch_and_the_cell_only(load: Callable[..., Patches]) -> None:
    data = load(seed=3)
    rows, key = data._rows.numpy(), (3, 0, 0)
    whole = data._lineages.draw(rows, key)
    some = np.random.default_rng(0).permutation(len(rows))[:40]
    assert np.array_equal(data._lineages.draw(rows[some], key), whole[some])
    assert not np.array_equal(data._lineages.draw(rows, (3, 1, 0)), whole)
    later = [data.__getitems__(Batch(some.tolist(), epoch, 0))["meta"]["positive_row"] for epoch in (0, 1)]
    assert not torch.equal(*later)
    part = data.subset(some)
    assert torch.equal(part.__getitems__(np.arange(40))["positive"], data.__getitems__(some)["positive"])
    assert not torch.equal(load(seed=4).__getitems__(some)["positive"], data.__getitems__(some)["positive"])


def test_positives_by_columns_are_other_cells_of_the_same_labels_and_part(load: Callable[..., Patches]) -> None:
    columns = ["experiment", "condition", "t"]
    data = load(positive="columns", positive_columns=columns)
    training, validation = split(load(positive="columns", positive_columns=columns[:2]))
    for part, names in ((data, columns), (training, columns[:2]), (validation, columns[:2])):
        frame = table(part)[columns].astype(str)
        meta = part.__getitems__(np.arange(len(part)))["meta"]
        rows, other = meta["row"].numpy(), meta["positive_row"].numpy()
        assert (rows != other).all() and set(other) <= set(part._rows.numpy())
        assert (part._rows.numpy()[meta["partner"].numpy()] == other).all()
        assert (frame[names].iloc[rows].to_numpy() == frame[names].iloc[other].to_numpy()).all()
        assert meta["tau_hours"].isnan().all()


def test_a_cell_can_be_its_own_positive_where_views_make_it_another(load: Callable[..., Patches]) -> None:
    data = load(positive="self", augment=ImageViews())
    batch = data.__getitems__(np.arange(len(data)))
    assert len(data) == len(table(data)) and torch.equal(batch["anchor"], batch["positive"])
    for augment in (None, ImageViews(False, "none", 0, 0, 0, 0, 0, 0)):
        with pytest.raises(ValueError, match="pair cells with themselves"):
            load(positive="self", augment=augment)


def test_of_a_larger_patch_batches_hold_all_and_evaluation_takes_the_middle(load: Callable[..., Patches]) -> None:
    data = load(patch=(1, 18, 20), augment=ImageViews(crop=(12, 16)))
    whole = load(patch=(1, 18, 20))
    some = np.arange(len(data))
    assert data.shape == (2, 1, 12, 16)
    assert np.array_equal(data.recorded(some), whole.recorded(some)[..., 3:15, 2:18])
    batch = data.__getitems__(some)
    assert torch.equal(batch["anchor"], whole.__getitems__(some)["anchor"])
    assert data.views is not None and data.views(batch["anchor"], (0,)).shape == (len(data), 2, 1, 12, 16)
    with pytest.raises(ValueError, match=r"crop=\[19, 16\] is larger than the patches, which have \[18, 20\]"):
        load(patch=(1, 18, 20), augment=ImageViews(crop=(19, 16)))


def test_a_crop_of_a_config_is_read_by_a_loader(load: Callable[..., Patches]) -> None:
    node = {"_target_": "cellcohort.augment.image.ImageViews", "crop": [12, 16]}
    data = load(patch=(1, 18, 20), augment=node)
    batch = next(iter(make_loader(data, BatchSampler(data.cells, batch_size=8))))
    assert batch["anchor"].shape == (8, 2, 1, 18, 20) and data.shape == (2, 1, 12, 16)


def test_each_stored_chunk_is_decoded_once_in_a_batch(
    load: Callable[..., Patches], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load(cache_megabytes=0)
    read: list[tuple[int, ...]] = []
    decode = Chunks._read
    monkeypatch.setattr(Chunks, "_read", lambda self, keys: (read.extend(keys), decode(self, keys))[1])
    made = data.__getitems__(np.arange(0, len(data), 2))
    assert len(read) == len(set(read)) > 0 and data.chunks.bytes == 0
    touched = len(read)
    kept = load(cache_megabytes=64)
    for _ in range(2):
        assert torch.equal(kept.__getitems__(np.arange(0, len(data), 2))["anchor"], made["anchor"])
    assert len(read) == 2 * touched


def test_the_kept_chunks_stay_within_their_bound(load: Callable[..., Patches]) -> None:
    data = load()
    chunk = 40 * 48 * 2
    data.chunks = Chunks(data.chunks.fields, 5 * chunk)
    for start in range(0, len(data) - 8, 8):
        data.__getitems__(np.arange(start, start + 8))
        assert 0 < data.chunks.bytes <= 5 * chunk
        kept = list(data.chunks._kept.values())
        assert data.chunks.bytes == sum(one.nbytes for one in kept)
        assert all(one.base is None for one in kept)  # which holds nothing else in memory


def test_plates_with_the_same_names_inside_are_told_apart(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "other")):
        write_plate(tmp_path / f"{name}.zarr", {"A/1/0": SHAPE}, salt=number)
        tracks_of(["A/1/0"]).to_parquet(tmp_path / f"{name}.parquet")
    alike = {"conditions": {"mock": ["A/1"]}}
    path = write_collection(tmp_path, entry("one", **alike), entry("other", **alike))
    data = load_timelapse(path, patch=PATCH, normalise="none", cache=tmp_path / "cache").every_cell()
    half = len(data) // 2
    one, other = data.recorded(np.arange(half)), data.recorded(np.arange(half, 2 * half))
    assert not any(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("normalise", "by"), [("position", ["experiment", "fov"]), ("plate", ["experiment", "all"])])
def test_pixels_are_brought_to_one_brightness_and_contrast(
    load: Callable[..., Patches], normalise: str, by: list[str]
) -> None:
    raw, scaled = (load(normalise=name, patch=(1, 40, 48)).every_cell() for name in ("none", normalise))
    frame = table(raw).assign(all=0)
    everything = np.arange(len(frame))
    before, after = raw.recorded(everything), scaled.recorded(everything)
    for _, rows in frame.reset_index(drop=True).groupby(by, observed=True).groups.items():
        experiment, fov = frame.iloc[rows[0]][["experiment", "fov"]]
        shape, channels = STORED[experiment]
        fovs = [fov] if "fov" in by else ["A/1/0", "B/2/0"]
        whole = np.concatenate([pixels(SALT[experiment, name], shape)[:, channels] for name in fovs]).astype(float)
        mean, std = (np.reshape(f(whole, axis=(0, 2, 3, 4)), (2, 1, 1, 1)) for f in (np.mean, np.std))
        assert np.allclose(after[rows], (before[rows] - mean) / std, atol=1e-4)


def test_statistics_are_those_of_the_patches(load: Callable[..., Patches]) -> None:
    data = load(normalise="position")
    assert len(data) < 512
    patches = data.recorded(np.arange(len(data)))
    mean, std = data.statistics()
    assert np.allclose(mean, patches.mean((0, 2, 3, 4)), atol=1e-5)
    assert np.allclose(std, patches.std((0, 2, 3, 4)), atol=1e-5)


def test_slices_are_cut_around_z_and_around_the_middle_without_it(tmp_path: Path) -> None:
    shape = (4, 2, 7, 24, 24)
    write_plate(tmp_path / "one.zarr", {"A/1/0": shape}, chunks=(1, 1, 3, 16, 16))
    tracks = tracks_of(["A/1/0"], shape)
    for z, first in ((None, 2), (0.0, 0), (5.0, 4)):
        tracks.assign(**({} if z is None else {"z": z})).to_parquet(tmp_path / "one.parquet")
        path = write_collection(tmp_path, entry("one", conditions={"mock": ["A/1"]}))
        data = load_timelapse(path, patch=(3, 8, 8), normalise="none", cache=tmp_path / "cache").every_cell()
        assert data.shape == (2, 3, 8, 8)
        row = table(data).iloc[0]
        y, x = (int(np.clip(np.floor(row[axis] - 3.5 + 0.5), 0, 16)) for axis in "yx")
        expected = pixels(0, shape)[row["t"], :, first : first + 3, y : y + 8, x : x + 8]
        assert np.array_equal(data.recorded([0])[0], expected)


def test_dropping_cells_at_the_border_is_said_and_leaves_the_others(load: Callable[..., Patches]) -> None:
    every = table(load())
    with pytest.warns(UserWarning, match=r"border='drop' left out 42 of 96 cells"):
        dropped = load(border="drop")
    with pytest.warns(UserWarning, match="left out"):  # from the cache too
        load(border="drop")
    kept = table(dropped)
    height, width = (every["experiment"].astype(str).map({n: s[0][i] for n, s in STORED.items()}) for i in (3, 4))
    inside = (every["y"] >= 5) & (every["y"] < height - 6) & (every["x"] >= 7) & (every["x"] < width - 8)
    assert kept["track"].astype(str).tolist() == every["track"][inside].astype(str).tolist()


def test_the_index_is_built_once_and_again_when_its_inputs_change(
    collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(collection.parent, tmp_path / "copy")
    built: list[int] = []
    build = index_module.build_table
    monkeypatch.setattr(index_module, "build_table", lambda *arguments: (built.append(1), build(*arguments))[1])

    def load(**options: Any) -> Patches:
        usual = {"path": folder / "collection.yaml", "patch": PATCH, "cache": tmp_path / "cache"}
        return load_timelapse(**{**usual, **options})

    first = load()
    assert len(built) == 1
    again = load(tau_hours=(0.5, 3.0), seed=2)
    assert len(built) == 1 and table(again).equals(table(first))
    load(patch=(1, 8, 8))
    assert len(built) == 2
    tracks = pd.read_csv(folder / "two.csv").iloc[:-1]
    tracks.to_csv(folder / "two.csv", index=False)
    assert len(table(load())) == len(table(first)) - 1 and len(built) == 3
    text = (folder / "collection.yaml").read_text().replace("interval_minutes: 60", "interval_minutes: 45")
    (folder / "collection.yaml").write_text(text)
    assert load().cells.hours is not None and len(built) == 4
    assert not [file for file in (tmp_path / "cache").iterdir() if file.name.startswith(".")]


def test_the_preview_sees_the_cells_that_training_sees_and_decodes_nothing(
    load: Callable[..., Patches], collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load()
    monkeypatch.delattr(Chunks, "_read")
    seen = load_cells(collection, patch=PATCH, tau_hours=TAU, cache=tmp_path / "cache", also=["well"])
    assert len(seen) + seen.n_without_positive == len(data.every_cell()) > len(seen), "which the preview tells"
    assert seen.whole == data.whole and seen.cells.frame.equals(data.cells.frame)


def test_no_split_cuts_a_lineage(load: Callable[..., Patches]) -> None:
    training, validation = split(load(), fraction=0.4)
    families = [set(part.cells.frame["lineage"]) for part in (training, validation)]
    assert not families[0] & families[1]
    meta = training.__getitems__(np.arange(len(training)))["meta"]
    held = table(training)["lineage"].iloc[meta["positive_row"].numpy()]
    assert not set(held) & families[1]


def test_worker_processes_give_the_batches_of_this_one(load: Callable[..., Patches]) -> None:
    data = load(augment=ImageViews())
    data.recorded([0])  # an array is open, and a chunk kept
    alone = list(make_loader(data, BatchSampler(data.cells, batch_size=24)))
    others = list(make_loader(data, BatchSampler(data.cells, batch_size=24), num_workers=2))
    assert len(alone) == len(others) > 1
    for one, other in zip(alone, others, strict=True):
        for name in ("anchor", "positive"):
            assert torch.equal(one[name], other[name])
        assert torch.equal(one["meta"]["positive_row"], other["meta"]["positive_row"])


def test_what_is_kept_is_not_pickled(load: Callable[..., Patches]) -> None:
    data = load()
    before = len(pickle.dumps(data.chunks))
    data.__getitems__(np.arange(len(data)))
    assert len(pickle.dumps(data.chunks)) == before < 5000
    assert np.array_equal(pickle.loads(pickle.dumps(data)).recorded([0, 1]), copy.copy(data).recorded([0, 1]))


def test_positions_are_checked(load: Callable[..., Patches]) -> None:
    data = load()
    with pytest.raises(IndexError, match="use 0 to"):
        data.__getitems__([len(data)])
    with pytest.raises(TypeError, match="use integers"):
        data.__getitems__([0.5])  # type: ignore[list-item]
    with warnings.catch_warnings():
        assert data[0]["anchor"].shape == (1, 2, *PATCH)
