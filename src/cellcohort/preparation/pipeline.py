"""Prepare a store: read its source once, shuffle, write, and rename when all is there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import zarr
from annbatch.io import V1_ENCODING
from dask.distributed import CancelledError, Client, KilledWorker
from scipy import sparse
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from cellcohort.datasets.copies import COPIES, copy_groups, described, equal_by_chance
from cellcohort.datasets.stored.store import MANIFEST, Store
from cellcohort.files import fingerprint, locked, whole
from cellcohort.messages import changes, several, whole_number
from cellcohort.missing_values import Missing
from cellcohort.preparation.cluster import WAIT_SECONDS, Threads, as_they_finish, workers
from cellcohort.preparation.columns import storable
from cellcohort.preparation.job import Plan, sized
from cellcohort.preparation.order import stored_order
from cellcohort.preparation.tasks import cut, gather, put_down_labels
from cellcohort.sources import Source

FOUND = ("files", "labels", "columns", "copies")  # what is not chosen, but found, of a manifest
MOST_SHOWN = 40  # strata whose sizes are printed
LOSSES = 3  # of workers that hold the source, after which a preparation ends
RUNS, SAMPLED = 5, 200  # of rows that are looked at for values that many cells share


def prepare(
    source: Source,
    out: str | Path | None = None,
    group_by: Sequence[str] = ("experiment", "condition"),
    together: str | None = None,
    chunk_rows: int = 64,
    shard_rows: int = 4096,
    dataset_rows: int | None = None,
    seed: int = 0,
    cluster: str | None = None,
    threads: int = 2,
    missing: Missing = "error",
) -> Store:
    """Write the cells of a source as a store that can be sampled in runs of rows.

    The store is a collection of annbatch (zarr v3, sharded): ``dataset_0``, ``dataset_1``, ..., each an
    AnnData whose ``X`` (or ``obsm/patches``, for inputs of more axes) is cut into chunks of `chunk_rows`
    cells, with "source_file" and "source_row" in its obs. See :func:`~cellcohort.preparation.stored_order`
    for the order of the cells.

    Until all is written the work lies in ``<out>.partial``; the store appears by one rename. What a
    preparation left that was stopped at any point, the next one with the same options goes on with;
    with other options it is refused. A finished store with the same options is left as it is.

    Parameters
    ----------
    source : Source
    out : path
        Directory of the store; its name ends in ``.zarr``.
    group_by : sequence of str
        Columns whose labels together make the strata; empty for a plain shuffle.
    together : str, optional
        Column whose groups of cells are stored side by side inside a stratum.
    chunk_rows, shard_rows : int
        Cells per chunk, the least that is read at once, and per file.
    dataset_rows : int, optional
        Cells per dataset, which one thread holds in memory; by default what fits into 512 MiB.
    seed : int
        Key of the order of cells.
    cluster : str, optional
        Address of the scheduler of a Dask cluster, whose workers must reach the source and `out`;
        None works in this process.
    threads : int
        Of this process, without a `cluster`.
    missing : {"error", "label"}
        What a missing label does: "error" refuses the source, "label" makes it a label of its own.

    Returns
    -------
    Store

    Raises
    ------
    ValueError
        An option is out of range, a column is missing, `out` is another store or no store, or there are no workers
        at `cluster`.
    RuntimeError
        Another process prepares `out` at this moment.
    """
    if out is None or Path(out).suffix != ".zarr":
        raise ValueError(f"out={out} must name the directory to write, ending in .zarr, such as outputs/cells.zarr.")
    whole_number("threads", threads, 1)
    out = Path(out)
    obs, columns, notes = storable(source.obs)
    notes = [*source.notes, *notes]
    order, sizes = stored_order(source.obs, group_by, together, seed, missing, source.columns)
    row_bytes = 4 * int(np.prod(source.shape))  # of dense rows; sparse ones are fewer
    plan = sized(out.with_suffix(".partial"), len(order), row_bytes, chunk_rows, shard_rows, dataset_rows)
    shown = list(sizes.items())[:MOST_SHOWN]
    strata = several(len(sizes), "stratum", "strata")
    print(f"{several(len(order), 'cell')} of shape {source.shape} in {strata}", *map(_stratum, shown), sep="\n")
    if len(shown) < len(sizes):
        print(f"            and {len(sizes) - len(shown):,} more")
    notes += _of_one_label(source.obs, group_by)
    print(*notes, sep="\n", end="\n" if notes else "")
    about = {
        **{"group_by": list(group_by), "together": together, "seed": seed, "chunk_rows": chunk_rows},
        **{"shard_rows": shard_rows, "dataset_rows": plan.dataset_rows, "shape": list(source.shape)},
        **{f"source {key}": value for key, value in source.options.items()},
    }
    options = fingerprint({**about, "source": list(source.state)}, order)
    about |= {f"source {key}": value for key, value in source.state.items()}
    name = fingerprint(about, order, digits=32)
    about |= {"name": name, "rows": plan.rows}
    if out.exists():
        return _there(out, plan.folder, about)
    with _begun(plan.folder, name, options):
        if out.exists():
            raise RuntimeError(f"{out} was finished by another process just now; start again to use it.")
        if not (plan.folder / "place.npy").is_file():
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            with whole(plan.folder / "place.npy") as file:
                np.save(file, place)
        with workers(cluster, threads) as client, _lost_workers(plan.folder) if cluster else nullcontext():
            copies = _work(client, source, obs, plan, order, sizes)
        _finish(plan, out, {**about, "columns": columns, "copies": copies})
        shutil.rmtree(plan.folder)
    return Store(out)


def _sample(source: Source, rows: int) -> np.ndarray:
    """Read some rows, spread evenly."""
    starts = np.unique(np.linspace(0, max(rows - SAMPLED, 0), RUNS).astype(int))
    parts = [source.read(int(start), min(int(start) + SAMPLED, rows)) for start in starts]
    return np.concatenate([part.toarray() if sparse.issparse(part) else part for part in parts])


def _of_one_label(obs: pd.DataFrame, names: Sequence[str]) -> Iterator[str]:
    """Say which columns have one label, so that no sampler can do anything with them."""
    for name in dict.fromkeys(names):
        if name in obs and len(obs) and obs[name].nunique(dropna=False) == 1:
            yield f"All cells have the same {name}, {str(obs[name].iloc[0])!r}: is it the column that is meant?"


def _stratum(item: tuple[str, int]) -> str:
    return f"  {item[1]:>9,}  {item[0]}"


def _there(out: Path, folder: Path, about: Mapping[str, Any]) -> Store:
    store, name = Store(out), about["name"]  # which refuses what is no store
    if "name" not in store.manifest:
        raise ValueError(f"{out} is there and was not written by a preparation; name another out.")
    if store.manifest["name"] != name:
        options = {key: value for key, value in store.manifest.items() if key not in FOUND}
        said = changes({**options, "name": name}, about) or "the order of its cells"
        raise ValueError(
            f"{out} was prepared with other options than now. What has changed: {said} (then -> now). Name another out "
            f"(prepare.out) to have both, or delete {out} to prepare it anew; with the options of then it is used as "
            "it is."
        )
    print(f"{out} is finished already, with these options.")
    if (folder / "name").is_file() and (folder / "name").read_text().startswith(name):
        shutil.rmtree(folder)  # the work of it, stopped just before its end
    return store


@contextmanager
def _begun(folder: Path, name: str, options: str) -> Iterator[None]:
    """Return the folder of the work, for this process alone, empty unless it holds work of the same name."""
    mark = folder / "name"
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / "lock").exists()):
        raise ValueError(f"{folder} is in the way, and was not written by a preparation; move it.")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock") as alone:
        if not alone:
            raise RuntimeError(f"another process prepares {folder.stem}.zarr now; wait for it, or stop it.")
        before, *of_options = mark.read_text().split("\n") if mark.is_file() else [""]
        if before and before != name and of_options != [options]:
            raise ValueError(
                f"{folder} holds work on {folder.stem}.zarr that was stopped, with other options than now. Give those "
                "again to go on with it, name another prepare.out, or delete it to start afresh."
            )
        if before == name:
            print(f"going on with {folder}")
        else:
            if before:
                print(f"the source files have changed since work on {folder.stem}.zarr was stopped: it begins anew")
            for left in folder.iterdir():
                if left.name != "lock":
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            with whole(mark) as file:
                file.write_text(f"{name}\n{options}")
        yield


def _work(
    client: Client | Threads, source: Source, obs: pd.DataFrame, plan: Plan, order: np.ndarray, sizes: dict[str, int]
) -> str:
    """Write all datasets, and return what is to be said of cells that have copies."""
    _read(client, source, plan)
    groups = copy_groups(plan.digests()[order])
    copies = described(groups, sizes)
    if copies and equal_by_chance(_sample(source, plan.rows), plan.rows):
        copies = ""
        print(
            "Cells of the same values are taken for chance and not for copies: the source has few features with few "
            "different values."
        )
    if copies:
        print(copies)
        obs = obs.assign(**{COPIES: groups[np.argsort(order)]})
    gathers = []
    for dataset in range(plan.datasets):
        put_down_labels(plan, dataset, obs.iloc[order[slice(*plan.dataset(dataset))]])
        gathers.append(client.submit(gather, plan, dataset, source.shape, source.features, pure=False))
    _wait(client, gathers, "writing")
    return copies


def _read(client: Client | Threads, source: Source, plan: Plan) -> None:
    """Read all blocks; where a worker was lost with the source that was sent to it, the source is sent again."""
    for again in reversed(range(LOSSES)):
        try:
            sent = client.scatter(source, broadcast=True)  # of which Dask keeps one copy only where few read
            _wait(
                client, [client.submit(cut, sent, plan, block, pure=False) for block in range(plan.blocks)], "reading"
            )
            return
        except CancelledError:
            if not again or isinstance(client, Threads) or not _has_workers(client):
                raise


def _has_workers(client: Client) -> bool:
    try:
        client.wait_for_workers(1, timeout=WAIT_SECONDS)
    except OSError:  # a time-out is one, and so is a scheduler that is gone
        return False
    return True


@contextmanager
def _lost_workers(folder: Path) -> Iterator[None]:
    """Tell how to go on where no worker is left that could go on by itself."""
    try:
        yield
    except (CancelledError, KilledWorker, TimeoutError) as error:
        why = str(error) if isinstance(error, TimeoutError) and str(error) else type(error).__name__
        raise RuntimeError(
            f"the workers of the cluster were lost ({why}). What they finished is kept in {folder}: "
            "start workers, and the same command again, which goes on from there. If memory was short, use fewer "
            "threads for each worker, or a smaller prepare.dataset_rows."
        ) from error


def _wait(client: Client | Threads, futures: list[Any], what: str) -> None:
    """Wait for all, and raise the first error as it was."""
    try:
        for future in tqdm(as_they_finish(client, futures), total=len(futures), desc=what, disable=None):
            future.result()
    except BaseException:
        client.cancel(futures)
        raise


def _finish(plan: Plan, out: Path, about: Mapping[str, Any]) -> None:
    """Mark the store as whole, with the size of every file, and put it in its place."""
    for left in plan.store.glob(".*"):  # of a worker that was killed
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    (plan.store / "zarr.json").unlink(missing_ok=True)  # of a preparation that was killed here, maybe cut short
    group = zarr.open_group(plan.store, mode="a", zarr_format=3)
    if missing := [number for number in range(plan.datasets) if not plan.finished(number).exists()]:
        raise RuntimeError(f"datasets {missing} are not in {plan.store}; prepare again.")
    files = sorted(file for file in plan.store.glob("dataset_*/**/*") if file.is_file())
    sizes = {str(file.relative_to(plan.store)): file.stat().st_size for file in files}
    labels = {name: crc32((plan.store / name).read_bytes()) for name in sizes if "/obs/" in name}
    said = {**about, "files": sizes, "labels": labels}
    group.update_attributes({**V1_ENCODING, MANIFEST: said})
    plan.store.rename(out)
