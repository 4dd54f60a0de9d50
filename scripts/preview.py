"""Show what a sampler does to cells, before anything is trained: no model, no GPU; images as pictures."""

from __future__ import annotations

import warnings
from pathlib import Path

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig

from cellcohort.runtime.cli import run_command
from cellcohort.runtime.run import Run


@hydra.main(config_path="../conf", config_name="preview", version_base="1.3")
def main(config: DictConfig) -> None:
    with Run(config) as run:
        if run.world_size > 1:
            raise ValueError(f"a preview is one process; instead of torchrun, say world_size={run.world_size}.")

        # here, so that a mistyped command line is told at once
        from cellcohort.figure_files import write_png
        from cellcohort.preview import cover, findings, picture, report, survey, training_cells
        from cellcohort.sampling import ShortfallWarning

        # cells
        source = training_cells(config)

        # sampling
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShortfallWarning)  # the report says it
            sampler = instantiate(config.batch_sampler, source.cells, world_size=config.world_size)

        # what the batches hold
        epochs, limit = config.trainer.max_epochs or 1, config.trainer.limit_train_batches
        measured = survey(sampler, config.batches, limit, epochs, source=source)
        found = findings(measured, mergeable="merge_labels" in config.data)
        text = report(measured, found, cover(sampler), source.lines())
        if sampler.schedule is not None and (last := min(epochs, sampler.schedule.n_epochs) - 1):
            later = survey(sampler.in_epoch(last), config.batches, limit, epochs, source, epoch=last)
            text += f"\nEPOCH {last}, AFTER THE LAST CHANGE OF THE SCHEDULE\n\n"
            text += report(later, findings(later), cover(later.sampler))
        print(text)
        (run.directory / "preview.txt").write_text(text, encoding="utf-8")
        write_png(picture(measured, config.run_name), run.directory / "preview.png")

        # what they look like
        if "patch" in config.data:
            from cellcohort.preview.contact_sheet import sheet  # here, since tables need no torch

            training, _ = instantiate(config.split, instantiate(config.data).dataset(instantiate(config.pairs)))
            steps = range(min(2, len(sampler)))
            write_png(sheet(training, sampler, steps, config.module.seed), run.directory / "sheet.png")


if __name__ == "__main__":
    run_command(main, Path(__file__).parents[1] / "conf")
