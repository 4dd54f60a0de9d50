"""CONCORD's sampler: batches of one domain, and a share of the others."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Literal, override

import numpy as np

from cellcohort.cells import CellTable
from cellcohort.extras import require
from cellcohort.sampling.axes.base import Axis, check_fraction
from cellcohort.sampling.axes.experiment_aware import ExperimentAware
from cellcohort.sampling.baselines.base import Baseline, module_of, refuse_axes, whole_batches

_GENERATOR = threading.Lock()  # torch's global one


class Concord(Baseline):
    """Draw as concord-sc's ``ConcordSampler`` does without neighbours; the options have its names and meanings.

    Parameters
    ----------
    cells, axes, batch_size, seed, rank, world_size, num_batches : see `BatchSampler`
        As for :class:`~cellcohort.sampling.BatchSampler`; `axes` must be empty, and `num_batches` cannot be "cover".
    column : str or list of str
        The column (or columns, jointly) of the domains.
    p_intra_domain : float
        Share of every batch from its domain, in (0, 1].
    domain_minibatch_strategy : {"proportional", "equal"}
        Whether domains have batches in proportion to their cells, or equally many.

    Raises
    ------
    ValueError
        Axes are given, or an option is out of range or does not fit the table.
    ModuleNotFoundError
        concord-sc is not installed.

    Notes
    -----
    Differs from the axis ``experiment_aware`` in that the batches of an epoch are as many whole ones as each domain
    fills, at least one; those beyond `num_batches` are left out at random. CONCORD leaves repeated cells out, so that
    its batches of small domains are short: here other cells of the domain fill them, and cells of the batch where the
    domain has no more. Neighbours (``p_intra_knn``) need an embedding, which a table of cells does not have: build
    batches of one cluster by ``sampler.experiment_aware.column`` instead.

    It draws from torch's global generator, whose state is put back.
    """

    about = "Drawn by the sampler of concord-sc, without neighbours: conditions and times are as they come."

    def __init__(
        self,
        cells: CellTable,
        axes: Mapping[str, Axis] | None = None,
        batch_size: int = 256,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_batches: int | None = None,
        column: str | Sequence[str] = "experiment",
        p_intra_domain: float = 1.0,
        domain_minibatch_strategy: Literal["proportional", "equal"] = "proportional",
    ) -> None:
        require("baselines", "concord")
        refuse_axes(axes, "CONCORD's sampler")
        inside = check_fraction("p_intra_domain", p_intra_domain, one_allowed=True)
        if inside == 0:
            raise ValueError("p_intra_domain=0 leaves no cells of the domain; use a share above 0.")
        if domain_minibatch_strategy not in ("proportional", "equal"):
            raise ValueError(
                f"domain_minibatch_strategy={domain_minibatch_strategy!r} is not a choice; use 'proportional' or "
                "'equal'."
            )
        self.options = {"column": column, "p_intra_domain": inside, "strategy": domain_minibatch_strategy}
        weights: Literal["uniform"] | None = "uniform" if domain_minibatch_strategy == "equal" else None
        domain = ExperimentAware(round(1 - inside, 12), weights, column)
        super().__init__(
            cells, {"domain": domain}, batch_size, seed, rank, world_size, num_batches=whole_batches(num_batches)
        )

    @override
    def _epoch(self, key: int) -> np.ndarray:
        import torch  # here, since it takes seconds and a wrong option is told before

        codes = self.cells.column(self.options["column"]).codes
        if "_made" not in vars(self):
            self._made = module_of("concord", "model", "sampler.py").ConcordSampler(
                self.batch_size,
                torch.from_numpy(codes.astype(np.int64)),
                None,
                p_intra_knn=0.0,
                p_intra_domain=self.options["p_intra_domain"],
                min_batch_size=1,
                domain_minibatch_strategy=self.options["strategy"],
                device=torch.device("cpu"),
            )
        batches: list[list[int]] = []
        with _GENERATOR:
            generator = torch.default_generator
            before = generator.get_state()
            generator.manual_seed(key)
            try:
                while len(batches) < self.num_batches:
                    batches += list(iter(self._made))  # list alone asks for its length first, which draws
            finally:
                generator.set_state(before)
        rng = np.random.default_rng(key)
        return np.stack([_filled(np.array(one), self.batch_size, codes, rng) for one in batches[: self.num_batches]])


def _filled(batch: np.ndarray, size: int, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Fill a short batch with other cells of its domain, and then with its own."""
    if len(batch) == size:
        return batch
    domain = np.flatnonzero(codes == np.bincount(codes[batch]).argmax())
    others = np.setdiff1d(domain, batch)
    more = rng.permutation(others)[: size - len(batch)]
    again = rng.choice(domain, size - len(batch) - len(more))
    return np.concatenate([batch, more, again])
