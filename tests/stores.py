"""Small AnnData files and the stores prepared from them, for the tests of what is read in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
from dask.distributed import LocalCluster
from scipy import sparse

from cellcohort.datasets.stored.store import Store
from cellcohort.preparation import prepare
from cellcohort.sources.anndata import AnnDataFiles

# what anndata and zarr say of themselves while they write
QUIET = [
    pytest.mark.filterwarnings("ignore:The '.*' option is deprecated"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
]
FEATURES = [f"gene_{i}" for i in range(7)]


def cells(n: int = 700, seed: int = 0, stored_sparse: bool = False) -> anndata.AnnData:
    """Cells of 3 experiments and 2 conditions, whose first feature is their number."""
    rng = np.random.default_rng(seed)
    values = (rng.random((n, len(FEATURES))) * (rng.random((n, len(FEATURES))) < 0.4)).astype(np.float32)
    values[:, 0] = np.arange(1, n + 1) + 10_000 * seed
    obs = pd.DataFrame(
        {
            "experiment": pd.Categorical(rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2])),
            "condition": pd.Categorical(rng.choice(["mock", "drug"], n, p=[0.8, 0.2])),
            "hours": rng.integers(0, 12, n) / 2,
            "track": [f"t{i // 7}" for i in range(n)],
        },
        index=[f"cell_{seed}_{i}" for i in range(n)],
    )
    return anndata.AnnData(
        sparse.csr_matrix(values) if stored_sparse else values, obs=obs, var=pd.DataFrame(index=FEATURES)
    )


def write(adata: anndata.AnnData, path: Path) -> Path:
    adata.write_zarr(path) if path.suffix == ".zarr" else adata.write_h5ad(path)
    return path


def prepared(folder: Path, n: int = 700, stored_sparse: bool = False, **options: Any) -> Store:
    """A store of :func:`cells`, in chunks of 16 and files of 64."""
    source = AnnDataFiles(write(cells(n, stored_sparse=stored_sparse), folder / "cells.h5ad"))
    sizes = {"chunk_rows": 16, "shard_rows": 64, "dataset_rows": 256}
    return prepare(source, folder / "cells.zarr", **{**sizes, **options})


def dense(rows: Any) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


@contextmanager
def local_cluster(**options: Any) -> Iterator[LocalCluster]:
    """Return a cluster whose end is not waited for longer than a minute."""
    cluster = LocalCluster(**{"death_timeout": 60, "dashboard_address": "127.0.0.1:0"} | options)
    try:
        yield cluster
    finally:
        with suppress(TimeoutError):
            cluster.close(timeout=60)
