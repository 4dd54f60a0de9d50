from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf

import launches
from cellcohort.cells import CellTable
from cellcohort.composition.log import read_composition
from cellcohort.evaluation import load_run
from cellcohort.module import ContrastiveModule
from cellcohort.runtime import distributed as launch
from cellcohort.sampling import BatchSampler, ExperimentAware

Train = Callable[..., Path]


def losses(directory: Path, key: str = "train/loss") -> list[float]:
    return pd.read_csv(directory / "metrics.csv")[key].dropna().tolist()


def test_a_run_leaves_one_directory_with_everything_in_it(train: Train, tmp_path: Path) -> None:
    directory = train("sampler=temporal", "seed=3")
    assert directory.parent.parent == tmp_path / "outputs" and directory.name.endswith("-temporal-s3")
    files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    assert files == [
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
        "composition.parquet",
        "config.yaml",
        "finished",
        "metrics.csv",
    ]

    config = OmegaConf.load(directory / "config.yaml")
    assert config.batch_sampler.axes.temporal.window_hours == 2.0 and config.module.seed == 3
    assert "${" not in (directory / "config.yaml").read_text()

    assert len(losses(directory)) == 15 and len(losses(directory, "val/loss")) == 3
    rates = losses(directory, "train/learning_rate")
    assert rates[0] == pytest.approx(config.module.learning_rate)
    assert rates == sorted(rates, reverse=True) and rates[-1] < rates[0]
    assert set(read_composition(directory)["epoch"]) == {0, 1, 2}


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_longer_run_goes_on_with_its_own_learning_rate(train: Train, whole: Path) -> None:
    begun = train("trainer.max_epochs=1")
    rest = losses(train(f"resume={begun / 'checkpoints' / 'last.ckpt'}"), "train/learning_rate")
    assert rest == losses(whole, "train/learning_rate")[5:]


def test_training_lowers_the_loss(train: Train) -> None:
    found = losses(train("trainer.limit_train_batches=25", "model=conv1d"))
    assert np.mean(found[-5:]) < np.mean(found[:5]) - 0.3


def test_a_checkpoint_holds_all_that_is_needed_to_embed(train: Train) -> None:
    directory = train("model.embedding=7", "trainer.max_epochs=1")
    module = ContrastiveModule.load_from_checkpoint(directory / "checkpoints" / "last.ckpt", map_location="cpu")
    embedding = module(torch.randn(2, *module.shape))
    assert embedding.shape == (2, 7)
    assert module.std.min() > 0 and not module.mean.eq(0).all()


def test_a_seed_repeats_a_run_and_another_does_not(train: Train, whole: Path) -> None:
    workers, other = train("loader.num_workers=2", "trainer.max_steps=8"), train("seed=1", "trainer.max_steps=5")
    assert losses(whole)[:8] == losses(workers)
    assert set(losses(whole)).isdisjoint(losses(other))
    assert len(set(losses(whole))) == 15


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # as it should: a run of its own, that begins elsewhere
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(train: Train, whole: Path) -> None:
    begun = train("trainer.max_steps=10")
    rest = train(f"resume={begun / 'checkpoints' / 'last.ckpt'}")
    assert losses(begun) + losses(rest) == losses(whole)
    assert losses(rest, "val/loss") == losses(whole, "val/loss")[-1:]


SELDOM = {
    "steps": ["callbacks.last.every_n_train_steps=4"],
    "epochs": ["callbacks.last.every_n_epochs=2"],
    "validations": ["+trainer.val_check_interval=4"],
}


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
@pytest.mark.parametrize("seldom", SELDOM)
def test_the_last_checkpoint_is_the_end_of_the_run_however_seldom_they_come(
    train: Train, whole: Path, seldom: str
) -> None:
    options = SELDOM[seldom]
    begun = train(*options, "trainer.max_steps=10")
    there = (begun / "checkpoints").iterdir()
    steps = {path.stem: torch.load(path, weights_only=True)["global_step"] for path in there}
    previous = {"steps": {"previous": 8}, "epochs": {}, "validations": {"previous": 5}}[seldom]
    assert steps.pop("best") <= 10 and steps == {"last": 10, **previous}
    rest = train(f"resume={begun / 'checkpoints' / 'last.ckpt'}", *options)
    assert load_run(rest).step == 15
    assert losses(begun) + losses(rest) == losses(whole)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_run_that_ends_between_checkpoints_and_within_an_epoch_goes_on_within_it(train: Train, whole: Path) -> None:
    begun = train("trainer.max_steps=7")
    rest = train(f"resume={begun / 'checkpoints' / 'last.ckpt'}")
    assert load_run(begun).step == 7 and losses(begun) + losses(rest) == losses(whole)


def test_who_wants_no_last_checkpoint_has_none(train: Train) -> None:
    kept = train("~callbacks.last", "+callbacks.checkpoint.every_n_epochs=2") / "checkpoints"
    assert [path.name for path in kept.iterdir()] == ["best.ckpt"]


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(
    train: Train, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = whole / "checkpoints" / "last.ckpt"
    with pytest.raises(SystemExit):
        train(f"resume={there.with_name('lats.ckpt')}")
    errors = capsys.readouterr().err
    assert "lats.ckpt is no file" in errors and str(there) in errors


def test_a_checkpoint_that_nothing_can_be_trained_from_is_refused(
    train: Train, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = whole / "checkpoints" / "last.ckpt"
    with pytest.raises(SystemExit):
        train(f"resume={there}", "trainer.max_epochs=2")
    errors = capsys.readouterr().err
    assert "trainer.max_epochs=2 leaves nothing to train" in errors and "a checkpoint of epoch 3" in errors
    assert "Traceback" not in errors and "raise trainer.max_epochs above 3" in errors

    cut_off = tmp_path / "cut_off.ckpt"
    cut_off.write_bytes(there.read_bytes()[:1000])
    with pytest.raises(SystemExit):
        train(f"resume={cut_off}")
    errors = capsys.readouterr().err
    assert "cut_off.ckpt" in errors and "it is cut off or damaged" in errors and "Traceback" not in errors


def test_validation_changes_no_training_batch(train: Train) -> None:
    without = train("trainer.limit_val_batches=0", "callbacks.checkpoint.monitor=null", "trainer.max_steps=8")
    assert losses(without) == losses(train("+trainer.num_sanity_val_steps=2", "trainer.max_steps=8"))
    assert (without / "checkpoints" / "last.ckpt").exists()


def test_validation_is_the_same_for_every_strategy(train: Train) -> None:
    frozen = ("module.learning_rate=1e-30", "trainer.max_epochs=2")
    one, other = train("sampler=random", *frozen), train("sampler=[experiment_aware,condition]", *frozen)
    assert losses(one, "val/loss") == pytest.approx(losses(other, "val/loss"))
    assert len(set(np.round(losses(one, "val/loss"), 5))) == 1


def test_jobs_of_a_sweep_follow_each_other_in_one_process(train: Train, tmp_path: Path) -> None:
    last = train("-m", "sampler=random,temporal", "trainer.max_epochs=1")
    directories = sorted(last.parent.glob("*-s0"))
    assert [path.name for path in directories] == ["random-s0", "temporal-s0"]
    assert all(len(losses(path)) == 5 for path in directories)
    alone = train("sampler=temporal", "trainer.max_epochs=1")
    assert losses(directories[1]) == losses(alone)


def test_a_directory_takes_one_run(train: Train, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train("hydra.run.dir=mine", "trainer.max_epochs=1")
    before = (tmp_path / "mine" / "metrics.csv").read_bytes()
    with pytest.raises(SystemExit):
        train("hydra.run.dir=mine")
    assert "mine holds a run already; choose another hydra.run.dir" in capsys.readouterr().err
    assert (tmp_path / "mine" / "metrics.csv").read_bytes() == before


def test_fast_dev_run_goes_through_all_stages(train: Train) -> None:
    assert train("trainer.fast_dev_run=true").is_dir()


def test_more_devices_than_processes_are_refused_with_the_command(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        train("trainer.devices=2")
    assert stop.value.code == 1
    assert (
        "Start them by torchrun, which sets both: torchrun --standalone --nproc-per-node=2" in capsys.readouterr().err
    )


def test_a_loss_that_is_not_a_number_stops_the_run_and_the_batch_is_kept(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train("module.learning_rate=1e30", "trainer.gradient_clip_val=null")
    error = capsys.readouterr().err
    assert "the training loss is nan in epoch 0, step" in error and "0 in the anchors" in error
    assert ", on rank 0; " in error and "By experiment: " in error and "By condition: " in error
    (kept,) = tmp_path.glob("outputs/*/*/batch-rank0.pt")
    batch = torch.load(kept, weights_only=True)
    assert f"Cells: {batch['meta']['position'][0]}, " in error and len(batch["anchor"]) == 32
    assert not torch.distributed.is_initialized()


def cells() -> CellTable:
    frame = pd.DataFrame({"experiment": ["a", "b"] * 8, "condition": ["x"] * 16, "hours_post_infection": range(16)})
    return CellTable.from_frame(frame)


def loader(**options: Any) -> torch.utils.data.DataLoader[int]:
    sampler = BatchSampler(cells(), batch_size=4, **options)
    return torch.utils.data.DataLoader(list(range(16)), batch_sampler=sampler)  # type: ignore[arg-type]


def trainer(**options: Any) -> lightning.Trainer:
    usual = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "use_distributed_sampler": False}
    return lightning.Trainer(accelerator="cpu", devices=1, enable_progress_bar=False, **{**usual, **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"use_distributed_sampler": True}, "trainer.use_distributed_sampler=true"),
        ({"overfit_batches": 2}, "trainer.overfit_batches=2"),
        ({"limit_train_batches": 0}, "no batch to train on: trainer.limit_train_batches=0"),
        ({"max_epochs": 0}, "trainer.max_epochs=0"),
        ({"max_steps": 0}, "trainer.max_steps=0"),
    ],
)
def test_options_that_break_the_sequence_or_train_on_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        launch.check(trainer(**options), ContrastiveModule((2, 3)), loader())


def test_the_usual_options_are_fine() -> None:
    launch.check(trainer(limit_train_batches=2), ContrastiveModule((2, 3)), loader())


def test_a_sampler_of_another_rank_is_refused() -> None:
    said = "rank=1 of world_size=2, but this process is rank 0 of 1; make it with rank=0, world_size=1"
    with pytest.raises(ValueError, match=said):
        launch.check(trainer(), ContrastiveModule((2, 3)), loader(rank=1, world_size=2))


@pytest.mark.parametrize(("scope", "axes"), [("rank", True), ("rank", False), ("global", True)])
def test_negatives_gathered_from_batches_that_are_built_apart_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, scope: str, axes: bool
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    two: Any = trainer()
    place = {"num_devices": 2, "world_size": 2, "global_rank": 0}
    two = SimpleNamespace(**{**vars(two), **place, "num_nodes": 1, "max_epochs": 1, "max_steps": -1})
    module = ContrastiveModule((2, 3), objective={"_target_": "cellcohort.objectives.NTXent", "gather": True})
    sampling = {"experiment": ExperimentAware()} if axes else {}
    launch.check(two, module, loader(axes=sampling, scope=scope, world_size=2))
    said = [str(warning.message) for warning in recwarn if "objective.gather=true" in str(warning.message)]
    assert len(said) == (scope == "rank" and axes)


class Pairs(torch.utils.data.Dataset[Any]):
    def __getitems__(self, positions: list[int]) -> dict[str, Any]:
        windows = torch.randn(len(positions), 2, 3)
        return {"anchor": windows, "positive": windows, "meta": {"epoch": 0, "step": 0}}

    def __len__(self) -> int:
        return 16


def test_a_script_without_the_check_is_stopped_before_the_first_batch() -> None:
    sampler: Any = BatchSampler(cells(), batch_size=4, rank=1, world_size=2)
    batches = torch.utils.data.DataLoader(Pairs(), batch_sampler=sampler, collate_fn=lambda batch: batch)
    with pytest.raises(ValueError, match="this process is rank 0 of 1"):
        trainer(limit_val_batches=0).fit(ContrastiveModule((2, 3)), batches, batches)


@pytest.mark.processes
def test_two_processes_train_one_run_together(quick: tuple[str, ...], tmp_path: Path) -> None:
    done = launches.torchrun(
        tmp_path,
        "train.py",
        *quick,
        "sampler=[experiment_aware,temporal]",
        "batch_sampler.scope=global",
        "objective.gather=true",
        "trainer.max_epochs=2",
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line for line in said if line.startswith("run: ")] == said[-1:]
    directory = Path(said[-1].removeprefix("run: "))
    assert list(tmp_path.glob("outputs/*/*")) == [directory]
    assert sorted(path.name for path in directory.iterdir()) == [
        "checkpoints",
        "composition.parquet",
        "config.yaml",
        "finished",
        "metrics.csv",
        "wandb",
    ]
    assert len(list(directory.glob("wandb/offline-run-*"))) == 1
    assert len(losses(directory)) == 10 and len(losses(directory, "val/loss")) == 2
    held = read_composition(directory)
    assert set(held["rank"]) == {-1, 0, 1} and (held.groupby("rank").size() == 10).all()
    assert (held["duplicates"] == 0).all()


@pytest.mark.processes
def test_a_failing_rank_ends_the_others(quick: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "import os\n"
        "from cellcohort.models import MLP\n"
        "class Failing(MLP):\n"
        "    calls = 0\n"
        "    def forward(self, windows):\n"
        "        self.calls += 1\n"
        "        if os.environ['RANK'] == '1' and self.calls == 4:\n"
        "            raise RuntimeError('rank 1 fails on purpose')\n"
        "        return super().forward(windows)\n"
    )
    done = launches.torchrun(
        tmp_path, "train.py", *quick, "logger=none", "model._target_=failing.Failing", PYTHONPATH=str(tmp_path)
    )
    assert done.returncode != 0
    cause = done.stderr.rpartition("Root Cause")[2]
    assert "rank      : 1" in cause and "RuntimeError: rank 1 fails on purpose" in cause
    assert "run: " not in done.stdout


@pytest.mark.parametrize(
    ("objective", "logged"),
    [
        (["objective.exclude=[track]"], {"excluded"}),
        (["objective=supcon", "objective.same=[condition]", "objective.exclude=[track]"], {"excluded", "positives"}),
        (["objective=vicreg"], set()),
        (["objective=barlow_twins"], set()),
    ],
)
def test_every_objective_trains_and_logs_what_it_leaves_out(
    train: Train, objective: list[str], logged: set[str], recwarn: pytest.WarningsRecorder
) -> None:
    directory = train(*objective, "trainer.max_epochs=1")
    table = pd.read_csv(directory / "metrics.csv")
    assert len(losses(directory)) == 5 and np.isfinite(losses(directory)).all()
    assert logged == {"excluded", "positives"} & {name.removeprefix("train/") for name in table}
    assert not recwarn.list
    run = load_run(directory)
    if "excluded" in logged:
        track = run.training.cells.column("track").codes
        sampler = BatchSampler(run.training.cells, batch_size=32)
        same = [track[(at := sampler.batch(0, step))][:, None] == track[at] for step in range(5)]
        share = [(one.sum() - 32) / (32 * 31) for one in same]
        assert losses(directory, "train/excluded") == pytest.approx(share)
    if "positives" in logged:
        condition = run.training.cells.column("condition").codes
        positives = [2 * ((condition[at][:, None] == condition[at]) & ~one).sum() / 32 + 1
                     for at, one in zip([sampler.batch(0, step) for step in range(5)], same, strict=True)]  # fmt: skip
        assert losses(directory, "train/positives") == pytest.approx(positives)


def test_pairs_across_experiments_are_trained_on_logged_and_loaded_again(train: Train) -> None:
    rule = ["pairs.same=[condition]", "pairs.different=[experiment]", "pairs.hours_at_most=4"]
    with pytest.warns(UserWarning, match=r"same condition are pulled together.*objective.exclude=\[condition\]"):
        directory = train(*rule, "trainer.max_epochs=1")
    kept = read_composition(directory)
    assert (kept["pairs/across_experiment"] == 1).all() and (kept["pairs/across_condition"] == 0).all()
    assert (kept["pairs/hours"] <= 4).all() and (kept["pairs/second_views"] < 1).all()
    run = load_run(directory)
    assert run.training.partners is not None and run.training.pair_rule.same == ["condition"]
    train(*rule, "objective.exclude=[condition]", "trainer.max_epochs=1")  # without a warning
