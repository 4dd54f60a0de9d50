"""Where cells come from: one module for each kind of source, see cellcohort.datasets.protocol.Source."""

from __future__ import annotations

from cellcohort.extras import require

require("train")

FUNCTIONS_OF_0_1 = {
    "tracks.load_tracks": "tracks.Tracks",
    "demo.load_demo": "demo.Demo",
    "timelapse.load_timelapse": "timelapse.Timelapse",
    "demo_timelapse.load_demo_timelapse": "demo_timelapse.DemoTimelapse",
    "anndata.load_anndata": "anndata.AnnData",
    "patches.load_patches": "patches.StoredPatches",
}
"""What `data._target_` was in the configs of version 0.1.0, and the source of the same options."""


def source_of(target: str) -> str:
    """Return the source that takes the place of what `data._target_` was in version 0.1.0; others as they are."""
    name = target.removeprefix(f"{__name__}.")
    return f"{__name__}.{FUNCTIONS_OF_0_1[name]}" if name in FUNCTIONS_OF_0_1 else target
