"""What an encoder has learned: all scores of its embedding, beside those of two baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from joblib import cpu_count
from threadpoolctl import threadpool_limits
from tqdm import tqdm  # type: ignore[import-untyped]

from cellcohort.datasets.protocol import Samples
from cellcohort.datasets.stored.cells import StoredCells
from cellcohort.evaluation.embed import (
    Features,
    Represent,
    flattened,
    represented,
    represented_pairs,
    statistics_by_experiment,
    untrained,
)
from cellcohort.evaluation.geometry import geometry_scores
from cellcohort.evaluation.mixing import ilisi_scores, mmd_scores
from cellcohort.evaluation.probes import condition_scores, experiment_scores, hours_scores
from cellcohort.evaluation.results import Results, embedding_table, score_table
from cellcohort.evaluation.score import Score
from cellcohort.evaluation.selection import Chosen, choose, training_part
from cellcohort.evaluation.tracks import smoothness_scores
from cellcohort.messages import whole_number
from cellcohort.module import ContrastiveModule
from cellcohort.sampling.rng import key_of, uniform

MOST_POSITIVES = 2000
N_STEPS = 7  # of the progress bar, per representation


class Evaluation:
    """Embed all cells, and score what the embedding tells of those that were held out.

    The same is scored of an untrained encoder of the same config and seed ("untrained") and of the
    inputs as recorded ("features"), so that a score can be seen for what training added to it.

    Parameters
    ----------
    max_cells : int
        Cells to take, at least 100: three in five to fit probes on, the others to score.
    permutations : int
        For the p of the discrepancy between experiments; at least 19.
    seed : int
        Key of which cells are taken. Keep it the same for all runs that are to be compared.

    Raises
    ------
    ValueError
        An option is out of range.
    """

    def __init__(self, max_cells: int = 20_000, permutations: int = 199, seed: int = 0) -> None:
        self.max_cells = whole_number("max_cells", max_cells, 100)
        self.permutations = whole_number("permutations", permutations, 19)
        self.seed = whole_number("seed", seed, 0)

    def __call__(
        self,
        module: ContrastiveModule,
        training: Samples,
        validation: Samples,
        device: torch.device | str | None = None,
    ) -> Results:
        """Evaluate a module on the two parts that it was trained and validated on.

        Parameters
        ----------
        module : ContrastiveModule
            Left where and as it was.
        training, validation : Samples
            The two parts of one dataset; no group of its `whole` has cells in both.
        device : torch.device, optional
            Where to embed; by default the GPU if there is one.

        Raises
        ------
        ValueError
            Embeddings are not finite.
        """
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        every = training.every_cell()
        fitted = training_part(every.cells, validation.cells, training.whole)
        chosen = choose(every.cells, fitted, training.whole, self.max_cells, self.seed)
        n_scored = int((~chosen.held.training).sum())
        print(f"evaluation: embedding {len(every):,} cells and scoring {n_scored:,} of them", flush=True)
        draws = uniform(key_of(self.seed, 2), np.arange(len(validation), dtype=np.uint64))
        positives = np.sort(np.argsort(draws)[:MOST_POSITIVES])

        home, mode, fresh = module.device, module.training, untrained(module)
        encoders: dict[str, Represent] = {"model": module.to(device).eval(), "untrained": fresh.to(device).eval()}
        read = np.sort(chosen.rows)  # in the order of the table, as stores are read fastest
        others: dict[str, Represent] = {"untrained": encoders["untrained"], "features": flattened}
        try:
            with statistics_by_experiment(encoders.values(), every, device):
                embedding = represented(every, np.arange(len(every)), {"model": module}, device)["model"]
                vectors = represented(every, read, others, device)
                pairs = represented_pairs(validation, positives, {**encoders, "features": flattened}, device, self.seed)
        finally:
            module.to(home).train(mode)
        if bad := int((~np.isfinite(embedding)).any(axis=1).sum()):
            raise ValueError(f"{bad} of {len(embedding)} embeddings are not finite; did the training diverge?")

        place = np.searchsorted(read, chosen.rows)
        by = {"model": embedding[chosen.rows], **{name: made[place] for name, made in vectors.items()}}
        features = Features(by["features"][: chosen.n_held][chosen.held.training], training.shape)
        by["features"] = features(by["features"])
        pairs["features"] = (features(pairs["features"][0]), features(pairs["features"][1]))
        names = ("model", "untrained", "features")
        # threads that wait for a core that others use cost more than they give: the matrices are small
        threads = threadpool_limits(max(1, cpu_count() // 2))
        with threads, tqdm(total=len(names) * N_STEPS, unit="step", leave=False) as progress:
            found = {name: list(self._scores(by[name], chosen, pairs[name], name, progress)) for name in names}
        if features.note:
            said = features.note
            found["features"] = [replace(s, note=f"{said}; {s.note}" if s.note else said) for s in found["features"]]
        options = {"max_cells": self.max_cells, "permutations": self.permutations, "seed": self.seed}
        obs_names = every.store.obs_names() if isinstance(every, StoredCells) else None
        return Results(score_table(found), options, embedding_table(every.cells, fitted, embedding, obs_names))

    def _scores(
        self, vectors: np.ndarray, chosen: Chosen, pairs: tuple[np.ndarray, np.ndarray], name: str, progress: tqdm
    ) -> Iterator[Score]:
        """All scores of a representation; the progress bar names those that are being computed."""
        inputs, held = vectors[: chosen.n_held], chosen.held
        steps: dict[str, Callable[[], list[Score]]] = {
            "condition probes": lambda: condition_scores(inputs, held),
            "hours": lambda: hours_scores(inputs, held),
            "experiment probe": lambda: experiment_scores(inputs, held),
            "iLISI": lambda: ilisi_scores(inputs, held),
            "MMD": lambda: mmd_scores(inputs, held, self.permutations, self.seed),
            "tracks": lambda: smoothness_scores(vectors, chosen.cells, chosen.pairs, self.seed),
            "geometry": lambda: geometry_scores(inputs[~held.training], *pairs),
        }
        for step, scores in steps.items():
            progress.set_description(f"scores: {step} of {name}")
            yield from scores()
            progress.update()
