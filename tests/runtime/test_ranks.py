"""A rank that died or hangs is named, and the others end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from torch.distributed import HashStore

from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.ranks import PATIENCE, RankWatch
from launches import torchrun

LOOKS = 10  # seconds of patience, at one look per second


@pytest.fixture
def ranks() -> list[RankWatch]:
    """Three ranks in their second step, all at the same place."""
    store = HashStore()
    made = [RankWatch(Launch(rank, 3), store, float(LOOKS), 1.0) for rank in range(3)]
    for watch in made:
        watch.mark("compute the loss", 1)
    assert not any(after(1, made))
    return made


def after(looks: int, ranks: Sequence[RankWatch], silent: Sequence[int] = ()) -> list[str]:
    """Return what each rank finds after so many looks, while some give no signs."""
    found = ["" for _ in ranks]
    for _ in range(looks):
        for rank, watch in enumerate(ranks):
            if rank not in silent:
                watch.sign()
        for rank, watch in enumerate(ranks):
            lost = None if rank in silent else watch.look()
            found[rank] = "" if lost is None else lost.why
    return found


def test_ranks_that_give_signs_and_are_equally_far_are_not_lost(ranks: list[RankWatch]) -> None:
    assert not any(after(100 * LOOKS, ranks))


@pytest.mark.parametrize("lost", [1, 2])
def test_a_rank_without_a_sign_is_named_by_all_others(ranks: list[RankWatch], lost: int) -> None:
    assert not any(after(LOOKS // 2 - 1, ranks, [lost]))
    found = after(2, ranks, [lost])
    assert found[lost] == "" and len({*found}) == 2
    said = (
        rf"Nothing is heard of rank {lost} \(process \d+ on \S+; after step 1 it began to compute the loss\) for 5 sec"
    )
    assert re.match(said, found[0])


def test_rank_0_without_a_sign_is_named_by_the_others(ranks: list[RankWatch]) -> None:
    found = after(LOOKS, ranks, [0])
    assert "Nothing is heard of rank 0 (" in found[1] and found[1] == found[2]


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_that_lives_but_does_not_go_on_is_named_by_the_others(ranks: list[RankWatch], lost: int) -> None:
    for rank, watch in enumerate(ranks):
        if rank != lost:
            watch.mark("compute gradients", 1)
    assert not any(after(LOOKS - 1, ranks))
    found = after(2, ranks)
    assert f"The others wait for rank {lost} (" in found[1] and "callbacks.ranks.hang_seconds" in found[1]


def test_what_may_take_long_may_take_longer(ranks: list[RankWatch]) -> None:
    for watch in ranks:
        watch.mark("validate", 1, patient=True)
    after(100 * LOOKS, ranks)  # as long as nobody waits, nothing counts
    for watch in ranks[:2]:
        watch.mark("validate", 1, patient=True)
    assert not any(after(PATIENCE * LOOKS - 1, ranks))
    found = after(2, ranks)[0]
    assert "The others wait for rank 2 (" in found and f"for {PATIENCE * LOOKS} seconds" in found


def test_a_rank_that_left_or_has_not_begun_is_waited_for(ranks: list[RankWatch]) -> None:
    ranks[2].sign(last=True)
    assert not any(after(100 * LOOKS, ranks[:2]))
    late = [RankWatch(Launch(rank, 3), HashStore(), float(LOOKS), 1.0) for rank in (0, 1)]
    assert not any(after(PATIENCE * LOOKS // 2 - 1, late))
    found = after(1, late)[0]
    assert "Nothing is heard of rank 1 (not started), rank 2 (not started)" in found
    assert f"for {PATIENCE * LOOKS // 2} seconds" in found


def test_all_lost_ranks_are_named_and_the_lowest_other_tells_it(ranks: list[RankWatch]) -> None:
    after(LOOKS // 2, ranks, [1, 2])
    lost = ranks[0].look()
    assert lost and list(lost.ranks) == [1, 2] and lost.teller == 0


def test_a_pause_of_the_watching_process_does_not_count(ranks: list[RankWatch]) -> None:
    """Time is that of its own looks: after a pause of all processes others may give their next sign a little later."""
    assert not any(after(LOOKS // 2 - 1, ranks, [1]))
    assert not any(after(LOOKS, ranks))


@pytest.mark.parametrize("of", ["null", "0.5"])
def test_the_time_is_an_option(train: Callable[..., Path], of: str) -> None:
    train("trainer.max_epochs=1", f"callbacks.ranks.hang_seconds={of}")


def test_a_time_that_is_none_is_refused(train: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train("callbacks.ranks.hang_seconds=0")
    assert "callbacks.ranks.hang_seconds must be a number > 0 or null, got 0." in capsys.readouterr().err


@pytest.mark.processes
def test_a_rank_that_hangs_is_named_and_the_launch_ends(quick: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import signal, time\n"
        "import lightning\n"
        "class Hang(lightning.Callback):\n"
        "    def on_train_batch_end(self, trainer, *arguments):\n"
        "        if trainer.global_rank == 1 and trainer.global_step == 2:\n"
        "            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun would wait 30 seconds for its end\n"
        "            time.sleep(300)\n"
    )
    done = torchrun(
        tmp_path, "train.py", *quick, "logger=none", "hydra.run.dir=run", "+callbacks.hang={_target_: mine.Hang}",
        "callbacks.ranks.hang_seconds=3", "callbacks.last.every_n_train_steps=1", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1
    said = r"error: The others wait for rank 1 \(process \d+ on \S+; after step 1 it began to change the weights\)"
    assert re.search(said, done.stderr), done.stderr
    assert f"Run directory: {tmp_path / 'run'}. To go on: torchrun --standalone --nproc-per-node=2 " in done.stderr
    assert f"resume={tmp_path / 'run/checkpoints/last.ckpt'}" in done.stderr
    assert "after step 1" in (tmp_path / "run/error-rank0.txt").read_text()
