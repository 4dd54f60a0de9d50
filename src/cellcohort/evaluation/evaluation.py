"""What an encoder has learned: all scores of its embedding, beside those of two baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from joblib import cpu_count
from threadpoolctl import threadpool_info, threadpool_limits
from tqdm import tqdm  # type: ignore[import-untyped]

from cellcohort.cells import CellTable, names_of
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
from cellcohort.evaluation.mechanisms import Treatments, mechanism_scores
from cellcohort.evaluation.mixing import ilisi_scores, mmd_scores
from cellcohort.evaluation.probes import condition_scores, experiment_scores, hours_scores
from cellcohort.evaluation.replicates import Replicates, centred, refuse_unknown, replicate_scores
from cellcohort.evaluation.results import Results, embedding_table, score_table
from cellcohort.evaluation.score import Held, Score
from cellcohort.evaluation.scores_file import MEANINGS
from cellcohort.evaluation.selection import Chosen, choose, training_part
from cellcohort.evaluation.tracks import smoothness_scores
from cellcohort.messages import joined, listed, whole_number
from cellcohort.module import ContrastiveModule
from cellcohort.progress_bar import progress_bar
from cellcohort.sampling.rng import key_of, uniform

if TYPE_CHECKING:
    from pydantic import NonNegativeInt

MOST_POSITIVES = 2000
NEED_MECHANISM = ("mechanism_map", "nsc", "nscb")
N_STEPS = 9  # of the progress bar, per representation


class Evaluation:
    """Embed all cells, and score what the embedding tells of those that were held out.

    The same is scored of an untrained encoder of the same config and seed ("untrained") and of the
    inputs as recorded ("features"), so that a score can be seen for what training added to it.

    Parameters
    ----------
    max_cells : int
        Cells to take, at least 100: three in five to fit probes on, and the others, which were held out, to score.
    permutations : int
        For the p of the discrepancy between experiments; at least 19.
    seed : int
        Key of which cells are taken. Keep it the same for all runs that are to be compared.
    replicates : Replicates
        Which cells are replicates of each other, for ``replicate_map``.
    mechanism : str, optional
        Column of the mechanism of action of each cell's treatment. Where it is given, ``mechanism_map``, ``nsc`` and
        ``nscb`` are scored.
    treatments : Treatments
        Which cells make the mean profiles that these three compare.
    scores : sequence of str, optional
        The scores that count, named before anything is trained. All are computed and written; a comparison tests
        these alone.

    Raises
    ------
    ValueError
        An option is out of range, or a score is not known.
    """

    def __init__(
        self,
        max_cells: int = 20_000,
        permutations: int = 199,
        seed: NonNegativeInt = 0,
        replicates: Replicates = Replicates(),  # noqa: B008  # frozen
        mechanism: str | None = None,
        treatments: Treatments = Treatments(),  # noqa: B008
        scores: Sequence[str] | None = None,
    ) -> None:
        self.max_cells = whole_number("max_cells", max_cells, 100)
        self.permutations = whole_number("permutations", permutations, 19)
        self.seed = whole_number("seed", seed, 0)
        self.replicates, self.mechanism, self.treatments = replicates, mechanism, treatments
        self.scores = [scores] if isinstance(scores, str) else list(scores or ())
        if unknown := [name for name in self.scores if name not in MEANINGS]:
            known = joined(list(MEANINGS))
            raise ValueError(f"evaluation.scores has {listed(unknown, show=repr)}; scores are {known}.")
        if mechanism is None and (needed := [name for name in self.scores if name in NEED_MECHANISM]):
            raise ValueError(
                f"evaluation.scores has {joined(needed)}, for which the mechanism of each cell must be known; name its "
                "column with evaluation.mechanism."
            )

    def check(self, cells: CellTable) -> None:
        """Refuse columns that a table does not have, before anything is trained.

        Parameters
        ----------
        cells : CellTable
            The cells that will be scored.

        Raises
        ------
        ValueError
            The option that names such a column, and the columns that there are.
        """
        refuse_unknown(cells, self.replicates.columns, "evaluation.replicates")
        if self.mechanism is not None:
            refuse_unknown(cells, self.treatments.columns, "evaluation.treatments")
            if not cells.has(self.mechanism):
                refuse_unknown(cells, [self.mechanism], "evaluation.mechanism")

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
        said = f"evaluation: embedding {len(every):,} cells and scoring {n_scored:,} of them"
        if chosen.n_held < len(every):  # as `max_cells` asks
            said += (
                f"; probes are fitted on {chosen.n_held - n_scored:,} others (evaluation.max_cells={self.max_cells})"
            )
        print(said, flush=True)
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
        with (
            _at_most_threads(max(1, cpu_count() // 2)),
            progress_bar(None, "scores", "step", len(names) * N_STEPS) as progress,
        ):
            found = {name: list(self._scores(by[name], chosen, pairs[name], name, progress)) for name in names}
        if features.note:
            said = features.note
            found["features"] = [replace(s, note=f"{said}; {s.note}" if s.note else said) for s in found["features"]]
        obs_names = every.store.obs_names() if isinstance(every, StoredCells) else None
        return Results(score_table(found), self._options(), embedding_table(every.cells, fitted, embedding, obs_names))

    def _options(self) -> dict[str, int | str]:
        """Return all options, by their names in a config; columns as texts."""
        options: dict[str, int | str] = {
            "max_cells": self.max_cells,
            "permutations": self.permutations,
            "seed": self.seed,
            "mechanism": self.mechanism or "",
            "scores": ",".join(self.scores),
        }
        for group in ("replicates", "treatments"):
            own = vars(getattr(self, group))
            options |= {f"{group}.{name}": ",".join(names_of([value])) for name, value in own.items()}
        return options

    def _scores(
        self, vectors: np.ndarray, chosen: Chosen, pairs: tuple[np.ndarray, np.ndarray], name: str, progress: tqdm
    ) -> Iterator[Score]:
        """All scores of a representation; the progress bar names those that are being computed."""
        for step, scores in self.steps(vectors, chosen, pairs).items():
            progress.set_description(f"scores: {step} of {name}")
            yield from scores()
            progress.update()

    def steps(
        self, vectors: np.ndarray, chosen: Chosen, pairs: tuple[np.ndarray, np.ndarray]
    ) -> dict[str, Callable[[], list[Score]]]:
        """Return what computes the scores of a representation, by name.

        Parameters
        ----------
        vectors : numpy.ndarray of float, shape (n_rows, dim)
            Of the rows of `chosen`.
        chosen : Chosen
        pairs : tuple of numpy.ndarray of float, shape (n_pairs, dim) each
            Held-out cells and their positives.

        Returns
        -------
        dict of str to callable
        """
        inputs, held = vectors[: chosen.n_held], chosen.held
        return {
            "condition probes": lambda: condition_scores(inputs, held),
            "hours": lambda: hours_scores(inputs, held),
            "experiment probe": lambda: experiment_scores(inputs, held),
            "iLISI": lambda: ilisi_scores(inputs, held),
            "MMD": lambda: mmd_scores(inputs, held, self.permutations, self.seed),
            "tracks": lambda: smoothness_scores(vectors, chosen.cells, chosen.pairs, self.seed),
            "geometry": lambda: geometry_scores(inputs[~held.training], *pairs),
            "replicates": lambda: replicate_scores(centred(inputs, held.training), held, self.replicates),
            "mechanisms": lambda: self._mechanism_scores(centred(inputs, held.training), held),
        }

    def _mechanism_scores(self, inputs: np.ndarray, held: Held) -> list[Score]:
        return [] if self.mechanism is None else mechanism_scores(inputs, held, self.mechanism, self.treatments)


def _at_most_threads(most: int) -> threadpool_limits:
    """Limit the threads of each library; one that has fewer keeps them, as OMP_NUM_THREADS may ask."""
    limits: dict[str, int] = {}
    for pool in threadpool_info():
        limits[pool["prefix"]] = min(pool["num_threads"], limits.get(pool["prefix"], most))
    return threadpool_limits(limits)
