"""Windows, positives and views; and the loader that must end a pass whole or with an error."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cellcohort.augment.features import Augment, draws
from cellcohort.cells import CellTable
from cellcohort.datasets.features.windows import TrackWindows
from cellcohort.loading.rows import BatchLoader, make_loader
from cellcohort.sampling import BatchSampler
from cellcohort.sampling.batch import Batch

EXACT = Augment(0.0, 0.0, 0.0)
HOURS = {"a": np.arange(10) * 0.5, "b": np.array([1.0, 1.5, 4.0, 4.5]), "c": np.array([7.0])}  # b has a gap


def dataset(**options: Any) -> TrackWindows:
    """Three tracks; feature "row" is the row of the table and "track" the track."""
    frame = pd.concat([pd.DataFrame({"track": k, "hours": h, "condition": "x"}) for k, h in HOURS.items()])
    frame["experiment"] = np.where(frame["track"] == "a", "e1", "e2")
    cells = CellTable.from_frame(frame, hours="hours", track="track")
    features = np.column_stack([np.arange(len(frame)), frame["track"].map({"a": 0, "b": 1, "c": 2})]).astype(np.float32)
    return TrackWindows(cells, features, ["row", "track"], **{"frames": 3, "seed": 1} | options)


class Sampler:
    """Twelve batches of every epoch, drawn anew in each; it fails at batch `broken`, and errs at batch `wrong`."""

    def __init__(self, n: int, broken: int | None = None, wrong: int | None = None) -> None:
        self.n, self.broken, self.wrong, self.epoch = n, broken, wrong, 0
        self.cells = range(n)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def sampler(self) -> Sampler:
        return self

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            if step == self.broken:
                raise LookupError(f"no batch {step} in epoch {self.epoch}")
            rng = np.random.default_rng((self.epoch, step))
            beyond = self.n if step == self.wrong else 0
            yield Batch((rng.choice(self.n, 4, replace=False) + beyond).tolist(), self.epoch, step)


def rows(windows: torch.Tensor | np.ndarray) -> list[list[float]]:
    return np.asarray(windows)[:, 0].tolist()


def test_a_window_is_the_last_recorded_frames_and_a_young_track_repeats_its_first() -> None:
    data = dataset(augment=EXACT, positive="track")
    everything = dataset()
    assert everything.shape == (2, 3)
    assert rows(everything.recorded([0, 1, 2, 9, 10, 12, 14])) == [
        [0, 0, 0], [0, 0, 1], [0, 1, 2], [7, 8, 9], [10, 10, 10], [10, 11, 12], [14, 14, 14]
    ]  # fmt: skip
    batch = data.__getitems__(list(range(len(data))))
    assert batch["anchor"].shape == (len(data), 2, 3) and batch["anchor"].dtype == torch.float32
    assert (batch["anchor"][:, 1] == batch["positive"][:, 1]).all(), "a positive is of the anchor's track"


@pytest.mark.parametrize("tau_hours", [(0.5, 2.0), (0.1, 0.6), (1.0, 1.0), (0.0, 50.0)])
def test_positives_are_all_the_frames_in_range_and_never_the_anchor(tau_hours: tuple[float, float]) -> None:
    data = dataset(augment=EXACT, positive="track", tau_hours=tau_hours)
    hours = np.concatenate(list(HOURS.values()))
    track = np.repeat([0, 1, 2], [10, 4, 1])
    gap = hours[None] - hours[:, None]
    possible = (track[None] == track[:, None]) & (gap >= tau_hours[0] - 1e-6) & (gap <= tau_hours[1] + 1e-6) & (gap > 0)
    anchors = np.flatnonzero(possible.any(axis=1))
    assert np.array_equal(data.cells.hours, hours[anchors]), "cells without a later frame are no anchors"
    seen = np.zeros_like(possible)
    for epoch in range(200):
        batch = data.__getitems__(Batch(range(len(data)), epoch))
        drawn = batch["positive"][:, 0, -1].numpy().astype(int)
        seen[anchors, drawn] = True
        assert np.allclose(batch["meta"]["tau_hours"], gap[anchors, drawn])
    assert np.array_equal(seen, possible)


def test_positives_in_range_are_drawn_evenly() -> None:
    data = dataset(augment=EXACT, positive="track", tau_hours=(0.5, 2.0))
    drawn = [data.__getitems__(Batch([0], epoch))["positive"][0, 0, -1].item() for epoch in range(2000)]
    share = np.bincount(np.array(drawn, int), minlength=5)[1:] / 2000
    assert np.allclose(share, 0.25, atol=0.04)


def test_without_a_later_frame_the_positive_is_a_second_view() -> None:
    mixed = dataset(positive="track_or_view").__getitems__([0, 9, 14])
    assert np.isnan(mixed["meta"]["tau_hours"].numpy()).tolist() == [False, True, True]
    assert not torch.equal(mixed["anchor"][1:], mixed["positive"][1:])
    second = dataset(positive="view", tau_hours=(99.0, 100.0)).__getitems__([0, 9, 14])
    assert torch.isnan(second["meta"]["tau_hours"]).all()


def test_a_range_below_the_interval_is_refused_and_not_rounded_to_the_anchor_itself() -> None:
    with pytest.raises(ValueError, match=r"no cell has a frame of its track 0.1 to 0.4 hours later .* 0.5 hours apart"):
        dataset(tau_hours=(0.1, 0.4))


@pytest.mark.parametrize("positive", ["track", "track_or_view", "view"])
def test_draws_depend_on_seed_epoch_and_cell_alone(positive: Any) -> None:
    data = dataset(positive=positive)
    chosen = [3, 0, 7, 2]
    batch = data.__getitems__(Batch(chosen, epoch=5, step=8))
    assert batch["meta"]["position"].tolist() == chosen and (batch["meta"]["epoch"], batch["meta"]["step"]) == (5, 8)
    again = data.__getitems__(Batch(sorted(chosen), epoch=5, step=0))
    back = np.argsort(np.argsort(chosen))
    part = data.subset(np.array(chosen)).__getitems__(Batch([0, 1, 2, 3], epoch=5))
    assert part["meta"]["position"].tolist() == [0, 1, 2, 3], "positions are those of the subset"
    for view in ("anchor", "positive"):
        assert torch.equal(batch[view], again[view][back]) and torch.equal(batch[view], part[view])
        assert not torch.equal(batch[view], data.__getitems__(Batch(chosen, epoch=6))[view])
        assert not torch.equal(batch[view], dataset(positive=positive, seed=2).__getitems__(Batch(chosen, 5))[view])


def test_a_subset_has_its_own_cells_and_statistics() -> None:
    data = dataset()
    part = data.subset(np.array([12, 1]))
    assert (
        len(part) == len(part.cells) == 2 and part.cells.hours is not None and part.cells.hours.tolist() == [4.0, 0.5]
    )
    mean, std = part.statistics()
    assert mean.tolist() == [6.5, 0.5] and std.tolist() == [5.5, 0.5] and mean.dtype == np.float32
    assert rows(part.subset(np.array([1])).recorded([0])) == [[0, 0, 1]]
    for wrong, error in (([15], IndexError), ([-1], IndexError), (np.ones(15, bool), TypeError)):
        with pytest.raises(error):
            data.subset(np.array(wrong))


def test_views_are_noisy_scaled_and_dropped_as_asked() -> None:
    n, mean, spread, which = 4000, np.array([5.0, -3.0], np.float32), np.array([2.0, 0.0], np.float32), np.arange(4000)
    windows = np.tile(np.array([[[9.0, 9.0]], [[-3.0, -3.0]]], np.float32).reshape(1, 2, 2), (n, 1, 1))
    noisy = Augment(0.3, 0, 0)(windows, mean, spread, (1, 2), which)
    assert abs(noisy[:, 0].std() / 0.6 - 1) < 0.05 and (noisy[:, 1] == -3).all(), "noise is in units of the spread"
    assert abs(np.corrcoef(noisy[:, 0, 0], noisy[:, 0, 1])[0, 1]) < 0.05, "and differs between frames"
    scaled = np.log((Augment(0, 0.2, 0)(windows, mean, spread, (1, 2), which)[:, 0] - 5) / 4)
    assert abs(scaled.std() / 0.2 - 1) < 0.05 and np.allclose(scaled[:, 0], scaled[:, 1], atol=1e-5)
    dropped = Augment(0, 0, 0.5)(windows + 1, mean, spread, (1, 2), which)
    gone = (dropped == mean[:, None]).all(axis=2)
    assert abs(gone.mean() - 0.375) < 0.02 and not gone.all(axis=1).any(), "one feature is always left"
    assert (windows[0] == [[9, 9], [-3, -3]]).all(), "the table is not written to"


def test_draws_are_even_and_differ_between_keys() -> None:
    u = draws((0, 1, 2), np.arange(20_000), 3)
    assert u.shape == (20_000, 3) and u.min() >= 0 and u.max() < 1
    assert (np.abs(np.histogram(u, 10, (0, 1))[0] / 6000 - 1) < 0.06).all()
    other = np.column_stack([u, draws((1, 0, 2), np.arange(20_000), 3), np.roll(u[:, :1], 1)])
    assert np.abs(np.corrcoef(other.T) - np.eye(7)).max() < 0.03


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 0}, "frames=0"),
        ({"tau_hours": (2.0, 0.5)}, "tau_hours"),
        ({"tau_hours": (-1.0, 0.5)}, "tau_hours"),
        ({"tau_hours": (0.0, 0.0)}, "tau_hours"),
        ({"tau_hours": (0.5, float("nan"))}, "tau_hours"),
        ({"positive": "daughter"}, "track_or_view, track, view"),
        ({"augment": EXACT}, "pair cells with themselves"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
        ({"seed": "a"}, "seed must be an integer >= 0, got 'a'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataset(**options)


@pytest.mark.parametrize("values", [{"noise": -0.1}, {"scaling": float("inf")}, {"dropout": 1.0}])
def test_augmentation_out_of_range_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"augment.{next(iter(values))}="):
        Augment(**values)


def test_a_table_in_another_order_is_refused() -> None:
    frame = pd.DataFrame({"track": ["a", "b", "a"], "hours": [0.0, 0.0, 1.0]})
    cells = CellTable.from_frame(frame, experiment=None, condition=None, hours="hours", track="track")
    with pytest.raises(ValueError, match="sort the table"):
        TrackWindows(cells, np.zeros((3, 1), np.float32), ["x"])


def test_features_that_are_missing_are_refused_with_their_rows() -> None:
    frame = pd.DataFrame({"track": ["a", "a", "b"], "hours": [0.0, 1.0, 0.0]})
    cells = CellTable.from_frame(frame, experiment=None, condition=None, hours="hours", track="track")
    values = np.array([[0.0], [np.nan], [np.inf]], np.float32)
    with pytest.raises(ValueError, match=r"missing or infinite values in 2 rows \(rows 1, 2, counted from 0\)"):
        TrackWindows(cells, values, ["x"])


def passes(loader: BatchLoader, epochs: int, limit: int) -> list[dict[str, Any]]:
    """The first batches of some passes, each given up after `limit`."""
    out = []
    for epoch in range(epochs):
        for step, batch in enumerate(loader):
            if step == limit:
                break
            assert (batch["meta"]["epoch"], batch["meta"]["step"]) == (epoch, step)
            out.append(batch)
    return out


@pytest.mark.parametrize(("num_workers", "start_method"), [(2, "forkserver"), (1, "spawn")])
def test_workers_give_what_the_thread_gives_in_every_epoch_whole_or_given_up(
    num_workers: int, start_method: Any
) -> None:
    data = dataset()

    def sampler() -> BatchSampler:
        return BatchSampler(data.cells, axes={}, batch_size=4, num_batches=12, seed=3)

    plain = make_loader(data, sampler())
    workers = make_loader(data, sampler(), num_workers, start_method=start_method)
    assert len(plain) == len(workers) == 12 and workers.dataset is data
    expected, found = passes(plain, 3, limit=5), passes(workers, 3, limit=5)
    for one, two in zip(expected, found, strict=True):
        assert torch.equal(one["anchor"], two["anchor"]) and torch.equal(one["positive"], two["positive"])
        assert torch.equal(one["meta"]["position"], two["meta"]["position"])
    shown = [[batch["meta"]["position"].tolist() for batch in found[i : i + 5]] for i in (0, 5, 10)]
    assert shown[0] != shown[1] != shown[2] != shown[0], "epochs differ with persistent workers"
    assert len(data.cells) == len(data), "sending the dataset to workers leaves it as it was"

    workers.batch_sampler.sampler.set_epoch(7)
    first = iter(workers)
    assert next(first)["meta"]["epoch"] == 7
    assert [batch["meta"]["epoch"] for batch in workers] == [8] * 12
    with pytest.raises(RuntimeError, match="ended by a new one"):
        list(first)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_loading_stops_the_pass_with_its_own_message(num_workers: int) -> None:
    data = dataset()
    loader = make_loader(data, Sampler(len(data), wrong=3), num_workers=num_workers)
    for _ in range(2):
        seen = []
        with pytest.raises(IndexError, match="use 0 to 14"):
            for batch in loader:
                seen.append(batch["meta"]["step"])
        assert seen == [0, 1, 2]


def test_a_worker_that_dies_stops_the_pass() -> None:
    data, others = dataset(), set(multiprocessing.active_children())
    batches = iter(make_loader(data, Sampler(len(data)), num_workers=1))
    next(batches)
    for worker in set(multiprocessing.active_children()) - others:
        worker.kill()
    with pytest.raises((RuntimeError, ConnectionError, EOFError)):
        list(batches)


def test_an_error_in_the_sampler_stops_the_pass_with_its_own_message() -> None:
    data = dataset()
    loader = make_loader(data, Sampler(len(data), broken=4))
    with pytest.raises(LookupError, match="no batch 4 in epoch 0"):
        list(loader)


def test_a_pass_that_is_given_up_leaves_no_thread_and_the_random_state_as_it_was() -> None:
    data = dataset()
    before, state = threading.active_count(), torch.random.get_rng_state()
    loader = make_loader(data, Sampler(len(data)))
    for _ in range(5):
        for batch in loader:
            assert batch["meta"]["step"] == 0
            break
    assert threading.active_count() == before
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_pass_left_open_is_stopped_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.setattr("atexit.unregister", at_exit.remove)
    data, before = dataset(), threading.active_count()
    batches = iter(make_loader(data, Sampler(len(data))))
    next(batches)
    assert threading.active_count() == before + 1
    at_exit[0]()
    assert threading.active_count() == before, "a thread that runs on could abort the interpreter"
    del batches
    assert len(list(make_loader(data, Sampler(len(data))))) == 12 and not at_exit


def test_the_epoch_set_before_the_first_batch_counts() -> None:
    data = dataset()
    loader = make_loader(data, Sampler(len(data)))
    batches = iter(loader)
    loader.batch_sampler.sampler.set_epoch(9)
    assert next(batches)["meta"]["epoch"] == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers=-1"),
        ({"buffer_size": 0}, "buffer_size=0"),
        ({"start_method": "fork"}, "forkserver or spawn"),
    ],
)
def test_loader_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    data = dataset()
    with pytest.raises(ValueError, match=message):
        make_loader(data, Sampler(len(data)), **options)


def test_a_sampler_of_another_table_is_refused() -> None:
    data, sampler = dataset(), Sampler(15)
    sampler.cells = data.subset(np.arange(7)).cells  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="made for 7 cells and the dataset has 15"):
        make_loader(data, sampler)


def test_stop_iteration_in_the_dataset_is_no_end_of_a_pass() -> None:
    class Stops(TrackWindows):
        def __getitems__(self, positions: Any) -> dict[str, Any]:
            if positions.step == 2:
                raise StopIteration
            return super().__getitems__(positions)

    data = dataset()
    data.__class__ = Stops
    with pytest.raises(RuntimeError, match=r"ended before its 12 batches.*'step': 2"):
        list(make_loader(data, Sampler(len(data))))
