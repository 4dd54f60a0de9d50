"""Train a contrastive encoder: cells, sampling, loader, model and objective, trainer, composition, evaluation."""

from __future__ import annotations

from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from cellcohort.runtime import distributed as launch
from cellcohort.runtime.cli import run_command
from cellcohort.runtime.run import Run


@hydra.main(config_path="../conf", config_name="train", version_base="1.3")
def main(config: DictConfig) -> None:
    with Run(config) as run:
        # cells and their pairs
        pairs = instantiate(config.pairs)
        training, validation = instantiate(config.split, instantiate(config.data).dataset(pairs))

        # sampling
        place = {"rank": run.rank, "world_size": run.world_size}
        sampler = instantiate(config.batch_sampler, training.cells, **place)
        fixed = instantiate(config.validation_sampler, validation.cells, **place)

        # loader
        loader = instantiate(config.loader, training, sampler)
        validation_loader = instantiate(config.loader, validation, fixed)

        # model + objective
        # a partial, because Hydra would turn views that are a dataclass into a mapping
        module = instantiate(config.module, _partial_=True)(training.shape, views=training.views)
        module.standardise(*training.statistics())

        # trainer, and among its callbacks composition: what every batch held
        trainer = instantiate(config.trainer, logger=run.loggers(), callbacks=run.callbacks(sampler))
        launch.check(trainer, module, loader)
        evaluation = instantiate(config.evaluation)  # here, so that a wrong option is told before training
        if evaluation:
            evaluation.check(training.cells)
        trainer.fit(module, loader, validation_loader, ckpt_path=config.resume)

        # evaluation: what the embedding tells of held-out cells
        if evaluation and launch.go_on_alone():
            results = evaluation(module, training, validation, trainer.strategy.root_device)
            results.write(run.directory)
            results.log(trainer.loggers, trainer.global_step)
            print(results.text())


if __name__ == "__main__":
    run_command(main, Path(__file__).parents[1] / "conf")
