"""Score a run that was trained before: embed all cells, and probe the embedding of those that were held out.

It is scored as at the end of its training, unless options of the evaluation say otherwise.
Scores and embeddings are written to the run directory, where compare.py finds them. They do not reach the W&B
run, which ended with the training; evaluate while training for scores on W&B.
"""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from cellcohort.runtime.cli import run_command
from cellcohort.runtime.distributed import Launch
from cellcohort.runtime.options import check_kinds
from cellcohort.runtime.stored_config import check_targets, read_config
from cellcohort.runtime.unknown_keys import refuse_unread


@hydra.main(config_path="../conf", config_name="evaluate", version_base="1.3")
def main(config: DictConfig) -> None:
    refuse_unread(config, HydraConfig.get().overrides.task)
    if OmegaConf.is_missing(config, "run"):
        raise ValueError("say which run: python scripts/evaluate.py run=<the directory that train.py printed as run:>")
    if not config.evaluation:
        raise ValueError("evaluation=none leaves nothing to do; leave it out, or use evaluation=default.")
    if Launch.here().world_size > 1:
        raise ValueError("an evaluation is one process: start it without torchrun.")
    if config.export not in (None, "h5ad"):
        raise ValueError(f"export={config.export} is not a choice; use export=h5ad, or leave it out.")
    stored = read_config(config.run).get("evaluation")
    chosen = [override.split("=")[0].lstrip("+~") for override in HydraConfig.get().overrides.task]
    if stored and "evaluation" not in chosen:  # as the run was scored, with the options that are given now
        check_targets(stored, "evaluation", config.packages)
        given = {key: OmegaConf.select(config, key) for key in chosen if key.startswith("evaluation.")}
        config.evaluation = stored
        for key, value in given.items():
            OmegaConf.update(config, key, value, force_add=True)
    check_kinds(config)
    from cellcohort.evaluation import load_run  # here, so that a mistyped command line is told at once

    evaluation = instantiate(config.evaluation)
    run = load_run(config.run, config.checkpoint, config.packages)
    evaluation.check(run.training.cells)
    results = evaluation(run.module, run.training, run.validation)
    results.write(config.run, config.checkpoint)
    print(results.text())
    if config.export:
        print(f"export: {results.export(config.run, config.export)}")
    if "wandb" in (run.config.get("logger") or {}):
        print(
            "These scores are in the run directory alone: the W&B run has those that the training ended with, if any."
        )
    print(f"run: {config.run}", flush=True)


if __name__ == "__main__":
    run_command(main, Path(__file__).parents[1] / "conf")
