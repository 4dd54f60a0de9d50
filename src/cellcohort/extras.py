"""Which libraries the parts of the package need beyond those of the base installation.

The base installation is the sampler: `cellcohort.cells` and `cellcohort.sampling`, row by row. All other parts belong
to an extra, which ``pip install 'cellcohort[extra]'`` installs.
"""

from __future__ import annotations

from importlib.util import find_spec

LIBRARIES = {
    "train": ("hydra", "kornia", "lightning", "monai", "omegaconf", "pytorch_metric_learning", "rich", "torch"),
    "images": ("cachetools", "google_crc32c", "iohub", "omegaconf", "torch", "tqdm", "zarr"),
    "stores": ("anndata", "annbatch", "dask", "h5py", "torch", "zarr"),
    "timm": ("timm", "torch"),
    "baselines": ("annbatch", "concord", "pytorch_metric_learning", "torch", "viscy_data"),
    "evaluate": ("copairs", "jinja2", "matplotlib", "scib_metrics", "sklearn", "statsmodels", "torch"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}


def require(extra: str, *names: str) -> None:
    """Check that libraries of an extra are installed, without importing them.

    Parameters
    ----------
    extra : str
        A key of `LIBRARIES`.
    *names : str
        Those of its libraries that are needed; by default all.

    Raises
    ------
    ModuleNotFoundError
        Some are not. The message holds the command that installs them.
    """
    missing = [name for name in names or LIBRARIES[extra] if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ModuleNotFoundError(
            f"{', '.join(missing)} {verb} not installed, which this part of cellcohort needs; "
            f"install it with: pip install 'cellcohort[{extra}]'.",
            name=missing[0],
        )
