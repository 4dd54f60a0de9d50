"""Give wrong tables, collections, labels, options and runs to cellcohort, and list the errors that explain nothing.

    uv run python scripts/fuzz.py --minutes 30
    uv run python scripts/fuzz.py --minutes 5 --only options --run outputs/<day>/<run>

An error explains something where this package, and not a library below it, raised it as a `ValueError`, `TypeError`
or `FileNotFoundError`; of an option, where the command line tells it in a sentence. Each other error is printed once,
with the shortest example that led to it, and the exit code is then 1. Run directories need ``--run``, a finished one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pandas as pd
import zarr
from anndata.io import write_elem
from hydra.utils import instantiate
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from cellcohort.cells import CellTable
from cellcohort.comparison import arms_of, compare, read_runs
from cellcohort.datasets.anndata.obs import join_obs, read_obs
from cellcohort.datasets.images.collection import read_collection
from cellcohort.evaluation import load_run
from cellcohort.evaluation.batches import StoredBatches, outstanding
from cellcohort.messages import quoted
from cellcohort.preview import cover, findings, report, survey, training_cells
from cellcohort.runtime.cli import explain
from cellcohort.runtime.distributed import check_length
from cellcohort.runtime.options import check_input, check_kinds
from cellcohort.sampling import BatchSampler
from fuzz_strategies import CLASSES, SAMPLES, axes, columns, frames, names, texts, trees

CONF = Path(__file__).parents[1] / "conf"
DOCUMENTED = (ValueError, TypeError, FileNotFoundError)


Draw = Any  # of hypothesis


def table(draw: Draw) -> Callable[[], object]:
    """Make a table, and batches of it."""
    frame, chosen = draw(frames()), draw(axes)
    roles = draw(
        st.dictionaries(
            st.sampled_from(["experiment", "condition", "hours", "track"]), st.one_of(names, st.none()), max_size=4
        )
    )
    missing, size = draw(st.sampled_from(["error", "label"])), draw(st.integers(-1, 9))

    def run() -> None:
        cells = CellTable.from_frame(frame, missing=missing, **roles)
        repr(cells)
        made = {name: CLASSES[name](**options) for name, options in chosen.items()}
        sampler = BatchSampler(cells, axes=made, batch_size=size)
        for step in range(min(2, len(sampler))):
            sampler.batch(1, step)

    run.__doc__ = f"{[*frame.T.values.tolist()]} {[*map(str, frame.dtypes)]} {roles} {missing} {chosen} {size}"
    return run


def preview(draw: Draw) -> Callable[[], object]:
    """Write a table to a file, split it, and report what its batches would hold, as does preview.py."""
    rows = 4 * draw(st.integers(2, 10))
    some = st.one_of(names, SAMPLES)
    named = draw(st.lists(some, max_size=4))
    frame = pd.DataFrame({"experiment": ["a", "b"] * (rows // 2), "condition": ["x", "x", "y", "y"] * (rows // 4)})
    frame["hours_post_infection"] = np.arange(rows) // 3
    for name in named:
        frame[name] = draw(columns(rows))
    suffix = draw(st.sampled_from([".csv", ".parquet"]))
    by = draw(st.one_of(st.just("track"), some, st.lists(some, max_size=2)))
    roles = draw(st.dictionaries(st.sampled_from(["hours", "track", "condition"]), some, max_size=2))
    axis = draw(st.sampled_from(["random", "experiment_aware", "condition", "[experiment_aware,condition]"]))
    typed = [f"data.columns.{role}={quoted(name)}" for role, name in roles.items()]
    typed.append(f"split.by={quoted(by) if isinstance(by, str) else '[' + ','.join(map(quoted, by)) + ']'}")
    typed += [
        f"data.missing={draw(st.sampled_from(['error', 'label']))}",
        f"sampler={axis}",
        "batch_sampler.batch_size=4",
    ]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"cells{suffix}"
            try:
                frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
            except Exception:
                return  # pandas does not write such a table
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                config = hydra.compose("preview", ["data=table", f"data.path={quoted(path)}", "model=mlp", *typed])
            source = training_cells(config)
            sampler = instantiate(config.batch_sampler, source.cells)
            measured = survey(sampler, 20, None, 1, source=source)
            report(measured, findings(measured), cover(sampler), source.lines())

    run.__doc__ = f"{suffix} {named} {frame[[*dict.fromkeys(named)]].T.values.tolist()} {' '.join(typed)}"
    return run


def collection(draw: Draw) -> Callable[[], object]:
    """Read the YAML of a collection, of which something is wrong."""
    entry: dict[Any, Any] = {
        "name": "a",
        "plate": "a.zarr",
        "tracks": "a.csv",
        "conditions": {"mock": ["A/1"]},
        "channels": ["GFP"],
    }
    optional = [
        "interval_minutes",
        "hours",
        "time_unit",
        "start_hours",
        "include",
        "exclude",
        "coordinates",
        "labels",
        "else",
    ]
    for key in draw(st.lists(st.sampled_from([*entry, *optional]), max_size=3)):
        entry[key] = draw(trees)
    text = (
        OmegaConf.to_yaml(OmegaConf.create({"experiments": [entry]}))
        if draw(st.booleans())
        else str({"experiments": [entry]})
    )
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=4)) + text[at + draw(st.integers(0, 5)) :]

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "collection.yaml"
            file.write_bytes(text.encode("utf-8", "surrogatepass"))
            read_collection(file)
        read_collection(None, [entry])

    run.__doc__ = repr(text)
    return run


def labels(draw: Draw) -> Callable[[], object]:
    """Join the obs of two stores, and make a table of cells of it."""
    parts = [draw(frames()) for _ in range(draw(st.integers(1, 2)))]
    missing = draw(st.sampled_from(["error", "label"]))

    def run() -> None:
        found = {}
        for number, frame in enumerate(parts):
            group = zarr.group()
            try:
                write_elem(group, "obs", frame.set_axis([f"c{i}" for i in range(len(frame))]))
            except Exception:
                return  # anndata does not write such a table
            found[f"file {number}"] = read_obs(group["obs"])[0]
        CellTable.from_frame(join_obs(found), missing=missing)

    run.__doc__ = f"{[([*frame.T.values.tolist()], [*map(str, frame.dtypes)]) for frame in parts]} {missing}"
    return run


def keys_of(config: Any, path: str = "") -> list[str]:
    """Return all keys that a command line can set."""
    found = []
    for key, value in config.items():
        found += [f"{path}{key}", *(keys_of(value, f"{path}{key}.") if isinstance(value, dict) else [])]
    return [key for key in found if not key.split(".")[-1].startswith("_")]


CELLS = CellTable.from_frame(
    pd.DataFrame(
        {
            "experiment": ["a", "b"] * 40,
            "condition": ["x", "x", "y", "y"] * 20,
            "hours_post_infection": np.arange(80) / 2,
            "track": np.arange(80) // 2,
        }
    ),
    track="track",
)


def options(draw: Draw) -> Callable[[], object]:
    """Give a command line to train.py, up to where it would read data."""
    data = draw(st.sampled_from(["demo", "demo", "tracks", "anndata", "timelapse"]))
    axis = "sampler=[experiment_aware,condition,temporal,track_capped]"
    typed = st.one_of(
        trees.map(lambda tree: OmegaConf.to_yaml(OmegaConf.create({"v": tree}), resolve=False)[3:].strip()),
        texts,
        st.sampled_from(
            ["null", "[]", "{}", "[1,a]", "-1", "0", "1e9", "true", "abc", "${seed}", "${nothing}", "'", "[", "???"]
        ),
    )
    chosen = [(draw(st.sampled_from(KEYS)), draw(typed)) for _ in range(draw(st.integers(1, 2)))]
    overrides = [f"data={data}", axis, "model=mlp", "logger=none", *(f"{key}={value}" for key, value in chosen)]

    def run() -> None:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra.compose("train", overrides)
        OmegaConf.to_yaml(config, resolve=True)
        check_kinds(config)
        check_length(config.trainer)
        instantiate(config.get("sampler") or {})
        if data != "demo":
            check_input(config.data)
        instantiate(config.batch_sampler, CELLS, rank=0, world_size=1).batch(0, 0)
        instantiate(config.objective)
        instantiate(config.pairs)
        instantiate(config.trainer, logger=False, enable_checkpointing=False)

    run.__doc__ = " ".join(overrides)
    return run


KEYS: list[str] = []
RUN = Path()
OTHERS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "directory": os.mkdir,
    "link to itself": lambda file: file.symlink_to(file.name),
    "link to nothing": lambda file: file.symlink_to("nothing"),
    "link to its directory": lambda file: file.symlink_to("."),
    "link to a device": lambda file: file.symlink_to("/dev/null"),
}


def directory(draw: Draw) -> Callable[[], object]:
    """Read a run directory of which one file is damaged, as do compare.py, evaluate.py and show.py."""
    files = sorted(path.relative_to(RUN) for path in RUN.rglob("*") if path.is_file())
    file = draw(st.sampled_from(files))
    content = (RUN / file).read_bytes()
    how = draw(st.sampled_from(["cut", "flip", "delete", "empty", "text", "line", "key", *OTHERS]))
    at, byte, new = draw(st.integers(0, max(0, len(content) - 1))), draw(st.integers(1, 255)), draw(trees)

    def damaged() -> bytes | None:
        if how == "flip" and content:
            return content[:at] + bytes([content[at] ^ byte]) + content[at + 1 :]
        if how == "line":
            lines = content.splitlines(keepends=True)
            return b"".join(lines[: at % max(1, len(lines))])
        if how == "key" and file.name == "config.yaml":
            config = OmegaConf.create(content.decode())
            plain: Any = OmegaConf.to_container(config)
            OmegaConf.update(config, random.Random(at).choice(keys_of(plain)), new, merge=False)
            return OmegaConf.to_yaml(config).encode()
        return {"delete": None, "empty": b"", "text": repr(new).encode("utf-8", "replace")}.get(how, content[:at])

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "run"
            shutil.copytree(RUN, copy)
            (copy / file).unlink()
            if how in OTHERS:
                OTHERS[how](copy / file)
            elif (now := damaged()) is not None:
                (copy / file).write_bytes(now)
            todo: list[Callable[[], object]] = [
                lambda: compare(arms_of(read_runs([RUN, copy])[0], allow_different=True)),
                lambda: outstanding(copy),
                lambda: StoredBatches(copy).batch(3),
            ]
            if file.suffix in (".yaml", ".ckpt"):
                todo.append(lambda: load_run(copy))
            for each in todo:
                checked(each)

    run.__doc__ = f"{file} {how} at {at} {byte} {new!r}"
    return run


def explained(error: Exception) -> bool:
    """Whether this package raised an error of a documented kind, or the command line tells it in a sentence."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    ours = str(frame.f_globals.get("__name__", "")).startswith("cellcohort")
    return (isinstance(error, DOCUMENTED) and ours) or explain(error, CONF) is not None


FOUND: dict[str, tuple[str, str]] = {}
EXAMPLE = [""]


def checked(run: Callable[[], object]) -> None:
    """Run what may fail, and keep an error that explains nothing; also one that waits, as for a pipe, is ended."""
    signal.alarm(100)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            run()
    except Exception as error:
        if explained(error):
            return
        trace = traceback.extract_tb(error.__traceback__)
        own = next((one for one in reversed(trace) if "/cellcohort/" in one.filename), trace[-1])
        key = f"{type(error).__name__} in {Path(own.filename).name}:{own.lineno}"
        if key not in FOUND or len(EXAMPLE[0]) < len(FOUND[key][1]):
            FOUND[key] = f"{error}"[:300], EXAMPLE[0]
    finally:
        signal.alarm(0)


def waited(*_: object) -> None:
    """End what takes too long."""
    raise TimeoutError("waited for more than 100 seconds")


TARGETS: dict[str, Callable[[Draw], Callable[[], object]]] = {
    "table": table,
    "preview": preview,
    "collection": collection,
    "labels": labels,
    "options": options,
    "directory": directory,
}


def fuzz(name: str, seconds: float) -> int:
    """Try examples of one kind for so long, and return how many."""
    tried, end = [0], time.monotonic() + seconds

    @settings(
        max_examples=100, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(st.composite(TARGETS[name])())
    def one(run: Callable[[], object]) -> None:
        if time.monotonic() < end:
            tried[0] += 1
            EXAMPLE[0] = f"{name}: {run.__doc__}"
            checked(run)

    while time.monotonic() < end:
        one()
    return tried[0]


def main() -> None:
    global RUN
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="for all kinds together")
    parser.add_argument("--only", choices=[*TARGETS], nargs="+", default=[*TARGETS], help="kinds of examples")
    parser.add_argument("--run", type=Path, help="a finished run directory of train.py, for damaged copies of it")
    given_options = parser.parse_args()
    if given_options.run is not None:
        RUN = given_options.run.resolve()
    every = {name: of() for name, of in CLASSES.items()}
    BatchSampler(CELLS, axes=every, batch_size=8).batch(0, 0)  # Numba takes no alarm while it compiles
    signal.signal(signal.SIGALRM, waited)
    kinds = [name for name in given_options.only if name != "directory" or given_options.run is not None]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(
            "train", ["sampler=[experiment_aware,condition,temporal,track_capped]", "data=demo", "logger=none"]
        )
    plain: Any = OmegaConf.to_container(config)
    KEYS.extend(key for key in keys_of(plain) if not key.startswith("callbacks"))
    for name in kinds:
        tried = fuzz(name, given_options.minutes * 60 / len(kinds))
        print(f"{name}: {tried} examples, {len(FOUND)} errors so far that explain nothing", flush=True)
        for key, (said, example) in FOUND.items():
            print(f"  {key}: {said}\n    {example[:1500]}", flush=True)
    sys.exit(1 if FOUND else 0)


if __name__ == "__main__":
    main()
