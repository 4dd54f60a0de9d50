"""Each experiment held out in turn: the figures known of raw features, where the table is at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from sklearn.metrics import balanced_accuracy_score

from cellcohort.datasets.split import split
from cellcohort.evaluation.probes import linear
from cellcohort.evaluation.score import Held
from cellcohort.evaluation.selection import training_part

ROOT = Path(__file__).parents[2]
FIELDS = ROOT.parent / "shared" / "data" / "jump_s3_controls" / "fields.parquet"


@pytest.mark.skipif(not FIELDS.exists(), reason="jump_s3_controls is not beside the repository")
@pytest.mark.parametrize(("by_batch", "known", "found"), [(False, 0.670, 0.676), (True, 0.728, 0.726)])
def test_nine_folds_of_raw_features_are_near_the_known_figures(by_batch: bool, known: float, found: float) -> None:
    """Those are accuracies of a plain logistic regression; here classes have one weight, and one share of the score."""
    scale = "data.scale_by={each: Metadata_Batch}" if by_batch else "data.scale_by=null"
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        data = compose("train", ["recipe=jump_controls", f"data.path={FIELDS}", scale]).data
    dataset = instantiate(data).dataset()
    values, condition = dataset.recorded(np.arange(len(dataset)))[:, :, 0], dataset.cells.column("condition").codes
    accuracy = []
    for fold in range(9):
        _, validation = split(dataset, "experiment", fold=fold)
        held = Held(dataset.cells, training_part(dataset.cells, validation.cells, dataset.whole), dataset.whole)
        assert len(np.unique(held.experiment.codes[~held.training])) == 1
        told = linear(values[held.training], condition[held.training], values[~held.training])
        accuracy.append(balanced_accuracy_score(condition[~held.training], told))
    assert np.mean(accuracy) == pytest.approx(found, abs=0.002) and abs(np.mean(accuracy) - known) < 0.01
