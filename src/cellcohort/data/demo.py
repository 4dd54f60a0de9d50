"""A simulated time course of tracked, dividing cells, with the truth that was planted in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cellcohort.data.tracks import Tracks, Windows
from cellcohort.datasets.partners import PairRule
from cellcohort.datasets.protocol import LabelledCells
from cellcohort.files import fingerprint, whole
from cellcohort.messages import whole_number

if TYPE_CHECKING:
    from cellcohort.datasets.features.windows import TrackWindows

EXPERIMENTS = ("plate_1", "plate_2", "plate_3", "plate_4")
CONDITIONS = ("rare_drug", "mock", "infected")
RARE_SHARE = 0.05  # of the cells are "rare_drug"; "mock" and "infected" share the rest
ONSET_HOURS = (20.0, np.nan, 12.0)
RESPONSE = ((-0.4, 0.9), (0.0, 0.0), (0.9, 0.3))  # direction and size of a full response
LATENTS = ("size", "motility", "identity_1", "identity_2", "response_1", "response_2")
FEATURES = (
    *("area", "perimeter", "eccentricity", "solidity", "nucleus_area", "nucleus_intensity", "texture_contrast"),
    *("texture_entropy", "er_intensity", "mito_intensity", "mito_texture", "lipid_count", "granularity"),
    *("speed", "turning", "neighbours"),
)
INTERVAL_MINUTES = 30
LAST = 96  # frame, at 48 hours
SHORTEST = 20  # frames of a track
COLUMNS = {"time": "t", "track": "track_id", "lineage": "lineage_id", "features": list(FEATURES)}
_MARK = b"cellcohort_demo"


def simulate(
    seed: int = 0,
    founders: int = 130,
    experiment_effect: float = 1.0,
    rare_share: float = RARE_SHARE,
    drift: float = 0.0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Simulate tracked cells.

    Cells grow, divide in two and wander; daughters inherit most of what tells their mother from
    other cells. A founder and its descendants share one condition. Some hours into the movie, at an
    onset of its own, a cell begins to respond: "infected" cells about 12 h and "rare_drug" cells
    about 20 h in, each in its own direction; "mock" cells never. Every experiment then shifts,
    stretches and blurs each feature by amounts of its own, which together exceed a response.

    Parameters
    ----------
    seed : int
        The same seed gives the same tables.
    founders : int
        Cells that start a family, in each experiment; at least 40.
    experiment_effect : float
        Multiplies the shift and the log of the gain that each experiment adds to each feature; 0 is none.
    rare_share : float
        Share of the cells of an experiment that are "rare_drug", as closely as whole families allow; above 0, at
        most 1/3.
    drift : float
        How far the features of an experiment move during its 48 hours, each at a constant rate of its own: the
        standard deviation over features, in the units of a full response, which is about 1.

    Returns
    -------
    table : pandas.DataFrame
        One row per cell and frame: "experiment", "condition", "t" (frames of 30 minutes, 0 to 96),
        "track_id" and "parent_track_id" (0 for founders), which repeat between experiments,
        "lineage_id" (the family), and the features.
    truth : pandas.DataFrame
        The same rows: "experiment", "track_id", "t", the latent variables before any effect of the
        experiment, "phase" of the cell cycle (0 to 1), "response" (0 to 1) and "onset_hours" (NaN for mock).
    """
    whole_number("simulation_seed", seed, 0)
    if whole_number("founders", founders, 1) < 40:
        raise ValueError(f"founders={founders} are too few for a condition of 5 %; use 40 or more.")
    for name, value, most in (("experiment_effect", experiment_effect, np.inf), ("drift", drift, np.inf)):
        if not 0 <= value < most:
            raise ValueError(f"{name} must be a finite number >= 0, got {value!r}.")
    if not 0 < rare_share <= 1 / 3:
        raise ValueError(f"rare_share must be above 0 and at most 1/3, got {rare_share!r}.")
    rng = np.random.default_rng((seed, len(EXPERIMENTS)))
    linear, bent = rng.normal(size=(2, len(LATENTS), len(FEATURES))) / np.sqrt(len(LATENTS))
    for latent, feature in (("size", "area"), ("size", "nucleus_area"), ("motility", "speed")):
        linear[LATENTS.index(latent), FEATURES.index(feature)] = 1.0
    parts = []
    for number, experiment in enumerate(EXPERIMENTS):
        rng = np.random.default_rng((seed, number))
        rows = _experiment(rng, founders, rare_share)
        latents = rows[list(LATENTS)].to_numpy()
        clean = latents @ linear + 0.5 * np.tanh(latents @ bent)
        n = len(FEATURES)
        offset, gain, noise = rng.normal(0, 1.2, n), np.exp(rng.normal(0, 0.3, n)), rng.uniform(0.3, 0.9, n)
        offset, gain = experiment_effect * offset, gain**experiment_effect
        seen = offset + gain * clean + noise * rng.normal(size=clean.shape)
        seen += drift * rng.normal(size=n) * rows["t"].to_numpy()[:, None] / LAST
        rows[list(FEATURES)] = seen.astype(np.float32)
        rows.insert(0, "experiment", experiment)
        parts.append(rows)
    rows = pd.concat(parts, ignore_index=True)
    known = ["experiment", "condition", "t", "track_id", "parent_track_id", "lineage_id", *FEATURES]
    planted = ["experiment", "track_id", "t", *LATENTS, "phase", "response", "onset_hours"]
    return rows[known], rows[planted]


def _experiment(rng: np.random.Generator, founders: int, rare_share: float) -> pd.DataFrame:
    """Return the rows of one experiment without its effect on the features, sorted by track and frame."""
    tracks = _families(rng, founders)
    n, length = len(tracks), (tracks["end"] - tracks["start"] + 1).to_numpy()
    condition = _conditions(rng, tracks["lineage_id"].to_numpy(), length, rare_share)
    onset = np.array(ONSET_HOURS)[condition] + rng.normal(0, 2.0, founders)[tracks["lineage_id"] - 1]
    onset += rng.normal(0, 0.5, n)
    walk = np.empty((n, LAST + 1))
    walk[:, 0] = rng.normal(size=n)
    for frame in range(1, LAST + 1):
        walk[:, frame] = 0.9 * walk[:, frame - 1] + np.sqrt(1 - 0.9**2) * rng.normal(size=n)

    of = np.repeat(np.arange(n), length)
    age = np.arange(len(of)) - np.repeat(np.cumsum(length) - length, length)
    rows = tracks.iloc[of].reset_index(drop=True)
    t = rows["start"].to_numpy() + age
    since = np.nan_to_num(t * INTERVAL_MINUTES / 60 - onset[of], nan=-1.0)
    response = np.where(since > 0, 1 - np.exp(-np.maximum(since, 0) / 4), 0.0)
    phase = np.minimum(rows["phase"].to_numpy() + age / rows["cycle"].to_numpy(), 1.0)
    direction = np.array(RESPONSE)[condition[of]] * response[:, None]
    made = {
        "condition": np.array(CONDITIONS)[condition[of]],
        "t": t,
        "size": 3 * (2**phase - 1.44) + 0.3 * rows["identity_1"],
        "motility": walk[of, age] - 0.5 * response,
        "response_1": direction[:, 0],
        "response_2": direction[:, 1],
        "phase": phase,
        "response": response,
        "onset_hours": onset[of],
    }
    return rows.assign(**made).drop(columns=["start", "end", "cycle"])


def _families(rng: np.random.Generator, founders: int) -> pd.DataFrame:
    """One row per track: first and last frame, mother, family, cycle length, phase at birth, identity."""
    mother, lineage = np.zeros(founders, int), np.arange(1, founders + 1)
    start, phase = np.maximum(rng.integers(-90, LAST + 2 - SHORTEST, founders), 0), rng.uniform(0, 0.9, founders)
    identity = rng.normal(size=(founders, 2))
    generations, born = [], 0
    while len(start):
        n = len(start)
        cycle = np.clip(rng.normal(48, 12, n), 24, 90)
        division = start + np.maximum(np.rint(cycle * (1 - phase)).astype(int), SHORTEST) - 1
        divides = division + SHORTEST <= LAST
        end = np.where(divides, division, LAST)
        lost = rng.random(n) < 0.2
        end = np.where(lost, rng.integers(start + SHORTEST - 1, end + 1), end)
        track = born + np.arange(1, n + 1)
        born += n
        rows = {"track_id": track, "parent_track_id": mother, "lineage_id": lineage, "start": start, "end": end}
        rows |= {"cycle": cycle, "phase": phase, "identity_1": identity[:, 0], "identity_2": identity[:, 1]}
        generations.append(pd.DataFrame(rows))
        two = np.repeat(np.flatnonzero(divides & ~lost), 2)
        mother, lineage, start, phase = track[two], lineage[two], end[two] + 1, np.zeros(len(two))
        identity = 0.8 * identity[two] + 0.6 * rng.normal(size=(len(two), 2))
    return pd.concat(generations, ignore_index=True)


def _conditions(rng: np.random.Generator, lineage: np.ndarray, length: np.ndarray, rare_share: float) -> np.ndarray:
    """Condition of every track: whole families, so that each condition has its share of the cells."""
    size = np.bincount(lineage - 1, weights=length)
    order = rng.permutation(len(size))
    middle = (np.cumsum(size[order]) - size[order] / 2) / size.sum()
    condition = np.empty(len(size), int)
    condition[order] = np.searchsorted((rare_share, (1 + rare_share) / 2), middle, side="right")
    return condition[lineage - 1]


@dataclass(frozen=True)
class Demo(Windows):
    """Simulated cells, written on first use and then read as any table of tracks is.

    Attributes
    ----------
    path : str or Path
        Directory of ``tracks.parquet`` and ``truth.parquet``; written anew when the simulation or
        its options have changed, and safe to be written by several processes at once.
    simulation_seed, founders : int
        See :func:`simulate`.
    experiment_effect, rare_share, drift : float
        See :func:`simulate`.
    frames, tau_hours, tau, tau_decay_hours, positive, augment, seed
        As for :class:`~cellcohort.data.tracks.Windows`.
    """

    path: str | Path = "outputs/demo"
    simulation_seed: int = 0
    founders: int = 130
    experiment_effect: float = 1.0
    rare_share: float = RARE_SHARE
    drift: float = 0.0

    def cells(self, also: Sequence[str] = (), pairs: PairRule | None = None) -> LabelledCells:
        """Read the cells without their features.

        Parameters
        ----------
        also : sequence of str
            Further columns of the table to read.

        Raises
        ------
        ValueError
            An option is out of range, or `path` holds a file of one of these names from elsewhere.
        """
        with _written(self.path, self._simulation) as table:
            return self._tracks(table).cells(also, pairs)

    def dataset(self, pairs: PairRule | None = None) -> TrackWindows:
        """Read the cells and their features.

        Parameters
        ----------
        pairs : PairRule, optional
            Which cells may be pairs, instead of those that the options of this source make.

        Raises
        ------
        ValueError
            As for :meth:`cells`.
        """
        with _written(self.path, self._simulation) as table:
            return self._tracks(table).dataset(pairs)

    @property
    def _simulation(self) -> tuple[Any, ...]:
        return self.simulation_seed, self.founders, self.experiment_effect, self.rare_share, self.drift

    def _tracks(self, table: Path) -> Tracks:
        shared = {field.name: getattr(self, field.name) for field in fields(Windows)}
        return Tracks(table, COLUMNS, INTERVAL_MINUTES, **shared)


def load_demo(path: str | Path = "outputs/demo", **options: Any) -> TrackWindows:
    """Read simulated cells and their features; the options are those of :class:`Demo`."""
    return Demo(path, **options).dataset()


def load_cells(path: str | Path = "outputs/demo", also: Sequence[str] = (), **options: Any) -> LabelledCells:
    """Read simulated cells without their features; the options are those of :class:`Demo`."""
    return Demo(path, **options).cells(also)


@contextmanager
def _written(path: str | Path, simulation: tuple[Any, ...]) -> Iterator[Path]:
    """Return the table of tracks, written if it is not there, and unchanged at the end."""
    table, truth = Path(path) / "tracks.parquet", Path(path) / "truth.parquet"
    options = " ".join(map(str, simulation)).encode()
    mark = fingerprint(Path(__file__).read_bytes(), options, digits=64).encode()
    if any(_mark_of(file) != mark for file in (table, truth)):
        for file, frame in zip((table, truth), simulate(*simulation), strict=True):
            _write(frame, file, mark)
    yield table
    if _mark_of(table) != mark:
        raise ValueError(f"another run rewrote {table} with other options; give each its own data.path.")


def _mark_of(file: Path) -> bytes | None:
    if not file.is_file():
        return None
    mark = (pq.read_schema(file).metadata or {}).get(_MARK)
    if mark is None:
        raise ValueError(f"{file} was not written by the demo and is left as it is; say another data.path.")
    return mark


def _write(frame: pd.DataFrame, file: Path, mark: bytes) -> None:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with whole(file) as beside:
        pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), _MARK: mark}), beside)
