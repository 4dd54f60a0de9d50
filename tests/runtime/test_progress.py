"""The progress bar names epochs as people count them."""

from __future__ import annotations

from pathlib import Path

import lightning
import pytest
from lightning.pytorch.demos.boring_classes import BoringModel

from cellcohort.runtime.progress import EpochProgress


@pytest.mark.filterwarnings("ignore")
def test_two_epochs_are_the_first_and_the_second_of_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = lightning.Trainer(
        default_root_dir=tmp_path,
        max_epochs=2,
        limit_train_batches=2,
        limit_val_batches=0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[EpochProgress()],
    )
    trainer.fit(BoringModel())
    out = capsys.readouterr()
    text = out.out + out.err
    finished = [bar for bar in text.split("\r") if "100%" in bar]
    assert (
        all(" of 2:" in bar for bar in finished) and "Epoch 1 of 2" in text and "Epoch 2 of 2" in text and "2/2" in text
    )
