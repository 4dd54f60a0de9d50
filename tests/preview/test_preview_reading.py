"""What the preview says of stores: what reading them costs, how to lay them out, and what windows of chunks alter."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate

from cellcohort.augment.expression import ExpressionViews
from cellcohort.cells import CellTable
from cellcohort.data.anndata import AnnData, load_anndata
from cellcohort.datasets.partners import PairRule
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.datasets.split import split
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.datasets.stored.pairs import Pairs
from cellcohort.datasets.stored.store import Store
from cellcohort.preview import Survey, TrainingCells, cover, findings, report, survey, training_cells
from cellcohort.preview.checks.balance import with_chunk_windows
from cellcohort.preview.checks.positives import second_views
from cellcohort.preview.checks.row_reads import BATCHES, row_reading
from cellcohort.sampling import (
    BatchSampler,
    ChunkedBatchSampler,
    ConditionBalanced,
    ExperimentAware,
    ShortfallWarning,
    TemporallyEnriched,
    TrackCapped,
)
from cellcohort.sampling.chunked.read_cost import reading
from stores import QUIET, cells, prepared, write

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore::cellcohort.sampling.ShortfallWarning")]
CONF = str(Path(__file__).parents[2] / "conf")
CONDITION = {"condition": ConditionBalanced()}
ALL: dict[str, Any] = {"experiment": ExperimentAware(), **CONDITION, "temporal": TemporallyEnriched()}
HOURS = {"experiment": "experiment", "condition": "condition", "hours": "hours", "track": None}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """One store in three layouts, each of two windows and more."""
    layouts = {"two": ["experiment", "condition"], "three": ["experiment", "condition", "hours"], "random": []}
    folders = {name: tmp_path_factory.mktemp(name) for name in layouts}
    return {name: prepared(folder, 9000, group_by=layouts[name], dataset_rows=4096) for name, folder in folders.items()}


def origin(dataset: Any, columns: Any = HOURS) -> TrainingCells:
    return TrainingCells(dataset, len(dataset), "track", columns)


def by_row(store: Store, axes: Any, **options: Any) -> Survey:
    dataset = load_anndata(store.path, HOURS)
    sampler = BatchSampler(dataset.cells, axes, **({"batch_size": 64, "world_size": 2} | options))
    return survey(sampler, 40, source=origin(dataset))


def in_chunks(store: Store, axes: Any, **options: Any) -> Survey:
    dataset = load_anndata(store.path, HOURS)
    given = {"batch_size": 32, "chunk_size": 16, "preload_nchunks": 64, "world_size": 2, **options}
    return survey(ChunkedBatchSampler(dataset.cells, axes, **given), 200, source=origin(dataset))


def text_of(of: Survey) -> str:
    return " ".join(report(of, findings(of), cover(of.sampler)).split())


def found(of: Survey, word: str) -> Any:
    """The one finding whose problem has a word."""
    (one,) = [each for each in findings(of) if word in each.problem]
    return one


# row by row


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("layout", ["two", "random"])
def test_what_is_read_row_by_row_is_counted_as_it_is_read(
    stores: dict[str, Store], monkeypatch: pytest.MonkeyPatch, layout: str, paired: bool
) -> None:
    store = stores[layout]
    dataset = load_anndata(store.path, HOURS)
    if paired:
        pairs = Pairs(dataset.cells.column("condition").codes, np.asarray(dataset.cells.hours), (0.5, 2.0), 0)
        dataset = StoredCells(store, dataset.cells, "stored_chunk", ExpressionViews(), pairs)
    of = survey(BatchSampler(dataset.cells, CONDITION, 64, world_size=2), 40, source=origin(dataset))
    cost = row_reading(of)
    read: list[tuple[int, int]] = []
    whole = Store.read
    monkeypatch.setattr(Store, "read", lambda self, a, b: [read.append((int(a), int(b))), whole(self, a, b)][1])
    steps = np.unique(np.linspace(0, of.epoch_steps - 1, BATCHES).astype(int))
    for step in steps:
        dataset.__getitems__(of.sampler.batch(0, int(step)))
    assert cost is not None and cost.rows == (128 if paired else 64) and cost.runs == len(read) / len(steps)
    chunks = sum((b - 1) // 16 - a // 16 + 1 for a, b in read)
    assert cost.amplification == pytest.approx(16 * chunks / (len(steps) * cost.rows)) and cost.amplification > 4
    assert (
        f"a batch of {cost.rows} rows requests {cost.runs:,.1f} runs of rows from the store and decodes whole chunks "
        f"of 16 rows: {cost.amplification:.2f} rows are read for every row used. With reading=chunks, equally exact"
    ) in text_of(of)


def test_reading_in_chunks_is_advised_with_what_it_reads_and_the_advice_is_accepted(stores: dict[str, Store]) -> None:
    of = by_row(stores["two"], CONDITION)
    one = found(of, "cells are read row by row")
    assert one.typed == "reading=chunks batch_sampler.preload_nchunks=256"
    line = ["data=anndata", f"data.path={stores['two'].path}", "sampler=condition", "batch_sampler.batch_size=64"]
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("preview", [*line, *shlex.split(one.typed)])
    chunked = instantiate(config.batch_sampler, of.sampler.cells, world_size=2)
    instantiate(config.loader, of.source.dataset, chunked)  # type: ignore[union-attr]
    assert f"read {reading(chunked).amplification:.1f} rows for each row used." in one.change
    joint = found(by_row(stores["two"], CONDITION, scope="global"), "cells are read row by row")
    covering = found(by_row(stores["two"], CONDITION, num_batches="cover"), "cells are read row by row")
    assert joint.typed == f"{one.typed} batch_sampler.scope=rank"
    assert covering.typed == f"{one.typed} batch_sampler.num_batches=null"


def test_a_store_is_to_be_laid_out_before_it_is_read_in_chunks(
    stores: dict[str, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = found(by_row(stores["random"], CONDITION), "cells are read row by row")
    assert "laid out at random, not by condition." in one.change and one.typed == "'prepare.group_by=[condition]'"
    monkeypatch.setattr("cellcohort.preview.checks.row_reads.WINDOW_ROWS", 128)
    one = found(by_row(stores["random"], CONDITION), "cells are read row by row")
    assert "cannot make these batches yet: a batch of 64 cells" in one.change and "preload_nchunks=8;" in one.change
    assert (
        one.change.endswith("laid out at random, not by condition.") and one.typed == "'prepare.group_by=[condition]'"
    )


def test_a_small_store_and_a_table_need_not_be_read_in_chunks(tmp_path: Path, stores: dict[str, Store]) -> None:
    of = by_row(prepared(tmp_path), CONDITION)
    cost = row_reading(of)
    assert cost is not None and f"{cost.amplification:.2f} rows are read" in text_of(of)
    assert not any("row by row" in one.problem for one in findings(of)) and "reading=chunks" not in text_of(of)
    assert "READING" not in report(replace(of, source=None), [], "")
    whole = by_row(stores["two"], {}, batch_size=4000)
    assert not any("row by row" in one.problem for one in findings(whole)), "nearly all of every chunk is used"


def test_of_a_store_that_does_not_say_how_its_rows_are_chunked_only_requests_are_told(tmp_path: Path) -> None:
    write(cells(700, stored_sparse=True), tmp_path / "cells.zarr")
    of = by_row(Store(tmp_path / "cells.zarr"), CONDITION)
    cost = row_reading(of)
    assert cost is not None and cost.amplification is None
    assert f"requests {cost.runs:,.1f} runs of rows from the store." in text_of(of) and "whole chunks" not in text_of(
        of
    )


# the layout of a store


def test_the_columns_that_a_store_is_not_laid_out_by_are_named(tmp_path: Path) -> None:
    names = {"experiment": "plate", "condition": "cell line", "hours": "hpi"}
    adata = cells(3000)
    adata.obs = adata.obs.rename(columns=names)
    store = prepared_of(adata, tmp_path, ["cell line"])
    dataset = load_anndata(store.path, {**names, "track": None})
    sampler = ChunkedBatchSampler(dataset.cells, ALL, 32, 16, 32)
    of = replace(survey(sampler, 20, source=origin(dataset, names)), sampler=sampler)
    one = found(of, "spread over many chunks")
    assert "laid out by cell line, but not by plate and hpi; until then" in one.change
    (typed,) = shlex.split(one.typed)
    override = OverridesParser.create().parse_override(typed)
    assert override.key_or_group == "prepare.group_by" and override.value() == ["cell line", "plate", "hpi"]
    one = found(replace(of, source=None), "spread over many chunks")
    assert "Lay the store out by plate, cell line and hours with scripts/prepare.py; until" in one.change
    assert one.typed == ""


@pytest.mark.parametrize("together", [None, "track"])
def test_positives_that_windows_do_not_hold_are_said(tmp_path: Path, together: str | None) -> None:
    store = prepared(tmp_path, 1400, group_by=[], together=together)
    cells = load_anndata(store.path, {**HOURS, "track": "track"}).cells
    pairs = Pairs(cells.column("track").codes, np.asarray(cells.hours), (0.5, 9.0), 0)
    dataset = StoredCells(store, cells, "track", ExpressionViews(), pairs)
    sampler = ChunkedBatchSampler(cells, {}, 32, 16, 8)
    of = survey(sampler, 40, source=origin(dataset, {**HOURS, "track": "track"}))
    windows = [sampler.load_request(one, len(store))["requests"] for _, one in sampler.requests(0)]
    alone = [
        rows == pairs.draw(rows, np.concatenate([np.arange(run.start, run.stop) for run in window]), 0)
        for (_, one), window in list(zip(sampler.requests(0), windows, strict=True))[:8]
        for rows in [np.concatenate(one)]
    ]
    assert f"{100 * np.mean(np.concatenate(alone)):.1f} % of the anchors have none there and are paired" in text_of(of)
    told = [one for one in findings(of) if "although the store has a later cell of their track" in one.problem]
    assert [one.typed for one in told] == ([] if together else ["prepare.together=track"])


def prepared_of(adata: Any, folder: Path, group_by: list[str]) -> Store:
    from cellcohort.preparation import prepare
    from cellcohort.sources.anndata import AnnDataFiles

    source = AnnDataFiles(write(adata, folder / "cells.h5ad"))
    return prepare(source, folder / "cells.zarr", group_by, chunk_rows=16, shard_rows=64, dataset_rows=256)


def test_a_store_that_is_laid_out_is_not_to_be_laid_out(tmp_path: Path, stores: dict[str, Store]) -> None:
    store = prepared(tmp_path, 700, group_by=["experiment", "condition", "hours"])
    of = in_chunks(store, ALL, preload_nchunks=32)
    one = found(of, "rows are read for every row")
    assert "laid out for the axes already: prepare smaller chunks (prepare.chunk_rows=8) and read these" in one.change
    assert one.typed == ""
    twice = found(in_chunks(store, ALL, chunk_size=32, preload_nchunks=16), "rows are read for every row")
    assert "read chunks as the store has them (batch_sampler.chunk_size=16)" in twice.change
    assert not any("rows are read" in each.problem for each in findings(in_chunks(stores["two"], CONDITION)))


def test_a_window_that_the_epoch_does_not_use_up_is_said(stores: dict[str, Store]) -> None:
    one = found(in_chunks(stores["random"], {}, num_batches=4), "rows are read for every row")
    assert "an epoch of 4 batches ends within a chunk window, which gives 31 batches" in one.problem
    whole = in_chunks(stores["random"], {}, num_batches=31)
    assert "multiple of 31" in one.change and not any("rows are read" in each.problem for each in findings(whole))


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (ALL, "lay the store out by plate, condition and hours (scripts"),
        ({"condition": ConditionBalanced(column=["condition", "plate"])}, "lay the store out by condition and plate ("),
        ({"track": TrackCapped()}, "preload_nchunks=2; use batch_sampler.preload_nchunks="),
    ],
)
def test_batches_that_no_window_holds_are_refused_with_the_columns_of_the_axes(axes: Any, said: str) -> None:
    rng, n = np.random.default_rng(0), 4000
    frame = pd.DataFrame({"plate": rng.choice(list("uvw"), n), "condition": rng.choice(["a", "b"], n, p=[0.98, 0.02])})
    frame["hours"], frame["track"] = rng.integers(0, 40, n), np.arange(n) // 64
    with pytest.raises(ValueError, match="is not always within preload_nchunks=2") as refused:
        table = CellTable.from_frame(frame, "plate", "condition", "hours", "track")
        ChunkedBatchSampler(table.take(np.flatnonzero(rng.random(n) < 0.5)), axes, 32, 16, 2)
    assert said in str(refused.value)


# what windows alter


def mixed(n: int = 12_000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"experiment": rng.choice(list("uvwxy"), n, p=[0.4, 0.25, 0.2, 0.1, 0.05])})
    frame["condition"] = rng.choice(list("abcd"), n, p=[0.5, 0.2, 0.2, 0.1])
    frame["hours_post_infection"] = rng.integers(0, 25, n) / 2
    frame["track"] = [
        f"{e}{c}{i}" for e, c, i in zip(frame.experiment, frame.condition, rng.integers(0, 60, n), strict=True)
    ]
    return frame.sort_values(["experiment", "condition", "track"], kind="stable").reset_index(drop=True)


def windows(axes: Any, limit: int | None = None, **options: Any) -> Survey:
    table = CellTable.from_frame(mixed(), track="track")
    given = {"batch_size": 32, "chunk_size": 16, "preload_nchunks": 64, "world_size": 2, **options}
    return survey(ChunkedBatchSampler(table, axes, **given), limit=limit)


def test_conditions_and_tracks_that_windows_crowd_are_told_beside_row_by_row() -> None:
    of = windows({"experiment": ExperimentAware()})
    rows = survey(BatchSampler(of.sampler.cells, of.sampler.axes, 32, world_size=2, num_batches=of.steps))
    one = found(of, "No axis governs the condition")
    absent = next(held for held in rows.label_shares if held.title == "condition").absent[3]
    assert (
        "comes from the chunks of one chunk window: " in one.problem
        and f"row by row it would be {100 * absent:.1f} %" in one.problem
    )
    assert "Add the axis condition" in one.change and "larger batch" not in one.change
    assert rows.same_track_share is not None
    one = found(of, "share their track")
    assert (
        f"; row by row it would be {100 * rows.same_track_share.mean():.1f} %)" in one.problem
        and "reading=rows" in one.change
    )
    assert not any("No axis governs" in each.problem for each in findings(rows))
    assert "row by row" not in found(rows, "share their track").problem


def test_cells_that_ranks_share_because_of_windows_are_told_so() -> None:
    of = windows(CONDITION)
    assert not of.row_by_row.shared_cells.any()  # type: ignore[union-attr]
    one = found(of, "ranks hold some of the same cells")
    assert "each rank reads chunk windows of its own; row by row, in 0.0 % of steps." in one.problem
    assert one.change == "Use fewer ranks; or reading=rows, which reads more rows for each row used."
    assert with_chunk_windows(of, lambda survey: 0.5) is None


def test_few_windows_are_not_blamed_on_the_table() -> None:
    with pytest.warns(ShortfallWarning, match="not each of 5 labels of experiment leads"):
        of = windows({"experiment": ExperimentAware(), "temporal": TemporallyEnriched(0.5, 0.0)}, world_size=4)
    one = found(of, "batches of each rank come from about")
    assert one.reasons == of.sampler.unreached and len(one.reasons) == 1  # type: ignore[attr-defined]
    assert "batch_sampler.num_batches" in one.change
    assert not any("table has too few cells" in each.problem for each in findings(of))


def test_leaders_that_come_otherwise_than_asked_are_told() -> None:
    of = windows({"experiment": ExperimentAware(), "temporal": TemporallyEnriched()}, num_batches=10)
    asked, led = of.primary_shares
    off = [i for i in range(5) if max(asked[i], led[i]) > 2 * min(asked[i], led[i])]
    one = found(of, "batches of each rank come from about")
    assert off and all(
        f"{'uvwxy'[i]}: {100 * led[i]:.1f} % instead of {100 * asked[i]:.1f} %" in one.problem for i in off
    )
    assert one.problem.count("instead of") == len(off)
    rows = survey(BatchSampler(of.sampler.cells, of.sampler.axes, 32, world_size=2, num_batches=20))
    assert not any("is primary in another share" in each.problem for each in findings(rows))
    one = found(
        replace(rows, primary=np.zeros(rows.n_batches, int)),
        "is primary in another share of the batches than asked (u: 100.0 % instead",
    )
    assert "windows" not in one.problem
    few = replace(rows, primary=np.array([0]), numbers={name: each[:1] for name, each in rows.numbers.items()})
    assert not any("is primary in another share" in each.problem for each in findings(few)), (
        "within one batch of what is asked"
    )


def test_cover_is_not_advised_where_it_cannot_be_had() -> None:
    one = found(windows(CONDITION, num_batches=50), "are never drawn")
    assert one.change == "Set batch_sampler.num_batches above 50, or raise trainer.max_epochs."


# what is held out


@pytest.mark.parametrize(
    ("by", "whole", "track", "columns", "said"),
    [
        ("track", "well", None, {"well": "w"}, "whole wells (data.columns.well)."),
        ("track", "table_row", None, {"well": None}, "whole rows of the table (no well is named, data.columns.well)."),
        ("track", "table_row", None, {}, "whole rows of the table (no track is named, data.columns.track)."),
        ("track", "stored_chunk", None, {}, "whole chunks of the store (no track is named, data.columns.track)."),
        ("track", "track", "track", {}, "whole tracks (split.by=track)."),
        ("track", "lineage", "track", {}, "whole lineages (split.by=track)."),
        ("experiment", "stored_chunk", None, {}, "whole experiments (split.by=experiment)."),
    ],
)
def test_what_is_held_out_is_said_as_it_was(
    by: str, whole: str, track: str | None, columns: dict[str, str], said: str
) -> None:
    table = CellTable.from_frame(mixed(300), track=track)
    of = TrainingCells(LabelledCells(table, whole), 400, by, columns)
    assert of.held_out_line() == f"100 of 400 cells (25.0 %) are held out for validation: {said}"


def test_chunks_that_are_no_whole_ones_of_the_store_are_refused_as_in_training(stores: dict[str, Store]) -> None:
    given = ["data=anndata", "reading=chunks", f"data.path={stores['two'].path}", "batch_sampler.chunk_size=24"]
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("preview", [*given, "batch_sampler.batch_size=48", "validation_sampler.batch_size=48"])
    with pytest.raises(
        ValueError, match=r"chunk_size=24 is no multiple of the 16 rows .* use batch_sampler\.chunk_size=16"
    ):
        training_cells(config)


def test_a_store_without_tracks_is_previewed_as_it_is_divided(stores: dict[str, Store]) -> None:
    with initialize_config_dir(CONF, version_base="1.3"):
        config = compose("preview", ["data=anndata", f"data.path={stores['two'].path}", "data.columns.hours=hours"])
    of = training_cells(config)
    assert of.store is not None and of.columns["hours"] == "hours" and of.n_all == 9000
    assert f"{9000 - len(of.cells):,} of 9,000 cells (" in of.held_out_line()
    assert "whole chunks of the store (no track is named" in of.held_out_line()


# pairs by a rule


def paired(rule: PairRule, sampler: Any = BatchSampler, **options: Any) -> Survey:
    frame = cells(600).obs.reset_index(drop=True)
    frame.loc[:99, "condition"] = "drug"
    frame["alone"] = np.where(np.arange(600) < 90, np.arange(600), -1)  # labels of their own for 90 cells
    whole = LabelledCells(CellTable.from_frame(frame, hours="hours", track="track"), "track", rule)
    training, validation = split(whole, fraction=0.2)
    n_copies = 600 - len(training) - len(validation) - training.n_left_out - validation.n_left_out
    of = TrainingCells(training, 600, "track", {}, n_copies)
    assert f"{len(validation) + validation.n_left_out} of 600 cells (" in of.held_out_line()
    return survey(sampler(training.cells, {}, batch_size=32, **options), 40, source=of)


def test_the_rule_of_pairs_is_described_with_what_its_pairs_cross() -> None:
    of = paired(PairRule(same="condition", different="experiment", hours_at_most=4))
    text = text_of(of)
    assert "PAIRS A positive has the same condition, another experiment and at most 4 hours between them." in text
    assert (
        "Every cell of the training part has such a partner there. Of the pairs of the first batches 100.0 % cross "
        in text
    )
    assert "experiments and 0.0 % cross conditions." in text and "no partner" not in text
    assert "PAIRS" not in text_of(paired(PairRule()))


@pytest.mark.parametrize("missing", ["view", "leave_out"])
def test_cells_without_a_partner_are_counted_with_what_is_done_about_them(missing: Any) -> None:
    of = paired(PairRule(same="alone", missing=missing))
    assert of.source is not None
    alone = int((of.source.cells.column("alone").codes > 0).sum()) or of.source.dataset.n_left_out
    assert alone > 60
    if missing == "leave_out":
        assert of.source.dataset.n_left_out == alone
        assert f"{alone} cells of the training part have no such partner there and are left out" in text_of(of)
        assert not [one for one in findings(of) if "no partner" in one.problem]
    else:
        assert f"{alone} cells ({alone / len(of.source.cells):.1%})".replace("%", " %") in text_of(of)
        assert found(of, "no partner").typed == "pairs.missing=leave_out"


def test_partners_that_are_not_in_the_chunk_window_are_a_finding(stores: dict[str, Store]) -> None:
    rule = PairRule(same="condition", different="experiment")
    whole = AnnData(stores["two"].path, HOURS).dataset(rule)
    axes = {"e": ExperimentAware()}
    sampler = ChunkedBatchSampler(whole.cells, axes, 32, 16, 8, num_batches=20)
    of = survey(sampler, 20, source=origin(whole))
    shares = second_views(of)
    assert shares is not None and shares[0] == 1.0 and shares[1] == 0.0, "a window holds one experiment"
    assert "a cell with the same condition and another experiment: it is not in their chunk window" in text_of(of)
    mixed = survey(ChunkedBatchSampler(whole.cells, {}, 32, 16, 64, num_batches=20), 20, source=origin(whole))
    assert second_views(mixed) == (0.0, 0.0)


def test_negatives_that_could_be_positives_are_a_finding_with_their_share() -> None:
    of = paired(PairRule(same="condition"))
    assert of.source is not None
    bad = replace(of, source=replace(of.source, objective={"exclude": None}))
    codes = of.sampler.cells.column("condition").codes[of.first_batches]
    share = np.mean([[(one == row).sum() - 1 for one in row] for row in codes]) / (codes.shape[1] - 1)
    problem = found(bad, "could be its positives").problem
    assert problem.startswith(f"{share:.1%} of the negatives".replace("%", " %"))
    for objective in ({"exclude": ["condition"]}, {"redundancy": 0.1}):
        good = replace(of, source=replace(of.source, objective=objective))
        assert not [one for one in findings(good) if "could be its positives" in one.problem]
