"""Decoding of zarr arrays at the speed of compiled code."""

from __future__ import annotations

from typing import Any

import zarr


def decoding(native: bool = True) -> Any:
    """Return a context in which arrays are opened to be decoded by zarrs, several times as fast as by zarr itself.

    Codecs that zarrs lacks are left to zarr.

    Parameters
    ----------
    native : bool
        Whether numbers are stored in the order of bytes of this machine, and the last axis runs fastest. If not, zarr
        itself decodes them, since zarrs reorders neither; other libraries may have set zarrs for all of zarr.
    """
    pipeline = "zarrs.ZarrsCodecPipeline" if native else "zarr.core.codec_pipeline.BatchedCodecPipeline"
    return zarr.config.set({"codec_pipeline.path": pipeline})
