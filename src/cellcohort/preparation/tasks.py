"""The two kinds of work of a preparation, as functions that a Dask worker runs."""

from __future__ import annotations

import shutil
import warnings
from threading import Lock
from typing import Any

import anndata
import numpy as np
import pandas as pd
import zarr
from annbatch import write_sharded
from scipy import sparse
from zarr.codecs import BloscCodec, ZstdCodec

from cellcohort.datasets.copies import digests
from cellcohort.datasets.stored.store import PATCHES
from cellcohort.files import whole
from cellcohort.messages import several
from cellcohort.preparation.job import Plan
from cellcohort.sources import Source

# with a checksum of every chunk, so that damage is found where it is and not learned from: that of zstd, since zarrs
# skips a checksum that is a codec by itself wherever it reads less than a whole file
CODECS = (BloscCodec(cname="lz4", clevel=3, shuffle="shuffle"), ZstdCodec(level=-5, checksum=True))
# annbatch and zarr keep how to write in settings of the process, which threads would set and undo under each other
_writing = Lock()


def cut(source: Source, plan: Plan, block: int) -> None:
    """Read one block of source rows, and put down for each dataset the rows that go into it.

    Raises
    ------
    ValueError
        A value is missing or infinite.
    """
    if plan.cut_mark(block).is_file():
        return
    start, stop = plan.block(block)
    rows, place = source.read(start, stop), np.asarray(plan.place()[start:stop])
    finite = np.isfinite(rows.data if sparse.issparse(rows) else rows)
    if not finite.all():
        raise ValueError(
            f"{several(int((~finite).sum()), 'value')} missing or infinite in source rows {start} to {stop - 1}, "
            "counted from 0; fill them or drop these rows."
        )
    for dataset in np.unique(place // plan.dataset_rows):
        chosen = np.flatnonzero(place // plan.dataset_rows == dataset)
        if plan.finished(dataset).exists():
            continue
        with whole(plan.piece(int(dataset), block)) as file:
            np.savez(file, **{"place": place[chosen], **_arrays(rows[chosen])})  # type: ignore[arg-type]  # its stub takes them for options
    with whole(plan.cut_mark(block)) as file:
        np.save(file, digests(rows))


def put_down_labels(plan: Plan, dataset: int, obs: pd.DataFrame) -> None:
    """Write the rows of obs of one dataset where :func:`gather` finds them, whichever worker it runs on."""
    if not plan.labels(dataset).exists():
        with whole(plan.labels(dataset)) as folder, _writing:
            anndata.io.write_elem(zarr.open_group(folder, mode="w", zarr_format=3), "obs", obs)


def gather(plan: Plan, dataset: int, shape: tuple[int, ...], features: list[str] | None) -> None:
    """Put the rows of one dataset in order, and write them with their labels.

    Raises
    ------
    RuntimeError
        Rows are missing from the pieces, or there twice.
    """
    if not plan.finished(dataset).exists():
        start, stop = plan.dataset(dataset)
        place, parts = [], []
        for file in plan.pieces(dataset):
            with np.load(file) as piece:
                place.append(piece["place"])
                parts.append(_rows({name: piece[name] for name in piece.files}, shape))
        order = np.argsort(np.concatenate(place))
        if not np.array_equal(np.concatenate(place)[order], np.arange(start, stop)):
            raise RuntimeError(
                f"the pieces in {plan.pieces(dataset)[0].parent} are not rows {start} to {stop - 1}, each once; "
                f"delete {plan.folder} and prepare again."
            )
        joined = sparse.vstack(parts, format="csr") if sparse.issparse(parts[0]) else np.concatenate(parts)
        obs: Any = anndata.io.read_elem(zarr.open_group(plan.labels(dataset), mode="r")["obs"])
        with whole(plan.finished(dataset)) as folder:
            _write(folder, joined[order], obs, features, plan)
    shutil.rmtree(plan.folder / "pieces" / str(dataset), ignore_errors=True)


def _write(folder: Any, inputs: Any, obs: pd.DataFrame, features: list[str] | None, plan: Plan) -> None:
    # chunks of zeros are written too, so that a chunk that is missing is known to be lost
    with _writing, zarr.config.set({"array.write_empty_chunks": True}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Observation names are not unique")  # as they may be in different files
        if inputs.ndim == 2:
            var = pd.DataFrame(index=pd.Index(features)) if features else None
            adata = anndata.AnnData(inputs, obs=obs, var=var)
        else:
            adata = anndata.AnnData(obs=obs, obsm={PATCHES: inputs})
        group = zarr.open_group(folder, mode="w", zarr_format=3)
        write_sharded(group, adata, n_obs_per_chunk=plan.chunk_rows, shard_size=plan.shard_rows, compressors=CODECS)


def _arrays(rows: Any) -> dict[str, np.ndarray]:
    if sparse.issparse(rows):
        return {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr}
    return {"rows": rows}


def _rows(arrays: dict[str, np.ndarray], shape: tuple[int, ...]) -> Any:
    if "rows" in arrays:
        return arrays["rows"]
    return sparse.csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), (len(arrays["indptr"]) - 1, *shape))
