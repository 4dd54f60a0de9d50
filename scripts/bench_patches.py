"""How fast patches come from plates, against reading them one by one and against the bound.

    uv run python scripts/bench_patches.py
    uv run python scripts/bench_patches.py --plate <phase_every8th.zarr, with its tracks.csv beside it>

Batches of anchors and positives are read from the demo plates, and from a real plate if there is one, under
random and under temporal + experiment_aware sampling. The same patches are read (a) one by one, each from
the store, and (b) the bound: every plane that a batch needs is decoded once and sliced. All take the same
batches in turn, so that whatever else the machine does meets them alike; the ratios are medians over batches.

"grouped" keeps nothing from batch to batch, as (a) and (b) do; "kept" has room for `--megabytes` of decoded
planes and is measured after one epoch's worth of batches has filled it. Then a small convolutional encoder
is trained on batches of the loader, and the share of a step that it waits for data is given.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
import zarr
from hydra.utils import instantiate

from cellcohort.datasets.images.patches import Patches
from cellcohort.loading.rows import make_loader
from cellcohort.module import ContrastiveModule
from cellcohort.sampling import BatchSampler, ExperimentAware, TemporallyEnriched
from cellcohort.sampling.axes.base import Axis

CONF = Path(__file__).parents[1] / "conf"
STRATEGIES: Mapping[str, Mapping[str, Axis]] = {
    "random": {},
    "temporal + experiment_aware": {"temporal": TemporallyEnriched(), "experiment": ExperimentAware()},
}


def load(*overrides: str) -> Patches:
    """Return the data of a config, as scripts/train.py has them."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return instantiate(hydra.compose("train", list(overrides)).data)


class Stores:
    """The plates of a dataset, read without it."""

    def __init__(self, data: Patches) -> None:
        self.fields, self.place, self.shape = data.chunks.fields, data._place.numpy(), data.shape
        self.arrays: list[Any] = [zarr.open_array(field.store, path=field.array, mode="r") for field in self.fields]

    def one_by_one(self, rows: np.ndarray) -> np.ndarray:
        """Read every patch from the store (a)."""
        out = np.empty((len(rows), *self.shape), np.float32)
        for i, (number, t, *corner) in enumerate(self.place[rows].tolist()):
            at = tuple(slice(start, start + n) for start, n in zip(corner, self.shape[1:], strict=True))
            for channel, stored in enumerate(self.fields[number].channels):
                out[i, channel] = self.arrays[number][(t, stored, *at)]
        return out

    def bound(self, rows: np.ndarray) -> np.ndarray:
        """(b) Every plane that is needed, decoded once and sliced."""
        out = np.empty((len(rows), *self.shape), np.float32)
        places = self.place[rows].tolist()
        planes: dict[tuple[int, int], list[int]] = {}
        for i, (number, t, *_) in enumerate(places):
            planes.setdefault((number, t), []).append(i)
        for (number, t), users in planes.items():
            for channel, stored in enumerate(self.fields[number].channels):
                plane = self.arrays[number][t, stored]
                for i in users:
                    z, y, x = places[i][2:]
                    out[i, channel] = plane[z : z + self.shape[1], y : y + self.shape[2], x : x + self.shape[3]]
        return out


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bench_reads(data: Patches, batch_size: int, n_batches: int, megabytes: int) -> None:
    print(f"  {'':28}{'grouped':>10}{'kept':>10}{'(a)':>9}{'(b)':>9}   grouped/(b) grouped/(a)  kept/(b)  kept/(a)")
    stores = Stores(data)
    for name, axes in STRATEGIES.items():
        sampler = BatchSampler(data.cells, axes, batch_size=batch_size)
        every = [(epoch, step) for epoch in range(1 + n_batches // len(sampler)) for step in range(len(sampler))]
        data.chunks = type(data.chunks)(data.chunks.fields, megabytes * 2**20)
        for number in range(min(len(data) // batch_size, n_batches)):  # what was before the batches that are timed
            data.__getitems__(sampler.batch(1, number).tolist())
        kept = data.chunks
        times = []
        for epoch, step in every[:n_batches]:
            batch = sampler.batch(epoch, step).tolist()
            meta = data.__getitems__(batch)["meta"]
            rows = torch.cat([meta["row"], meta["positive_row"]]).numpy()
            data.chunks = type(kept)(kept.fields, 0)
            data.chunks._storages = kept._storages
            grouped = seconds(lambda batch=batch: data.__getitems__(batch))  # type: ignore[misc]
            data.chunks = kept
            times.append(
                (
                    grouped,
                    seconds(lambda batch=batch: data.__getitems__(batch)),  # type: ignore[misc]
                    seconds(lambda rows=rows: stores.one_by_one(rows)),  # type: ignore[misc]
                    seconds(lambda rows=rows: stores.bound(rows)),  # type: ignore[misc]
                )
            )
        t = np.array(times)
        speed = 2 * batch_size / np.median(t, axis=0)
        ratios = [np.median(t[:, base] / t[:, i]) for i in (0, 1) for base in (3, 2)]
        print(
            f"  {name:28}{speed[0]:10,.0f}{speed[1]:10,.0f}{speed[2]:9,.0f}{speed[3]:9,.0f}"
            f"   {ratios[0]:11.2f} {ratios[1]:11.1f} {ratios[2]:9.2f} {ratios[3]:9.1f}"
        )


def bench_waiting(data: Patches, batch_size: int, steps: int, workers: int, device: str) -> None:
    model = {"_target_": "cellcohort.models.Conv2d"}
    for name, axes in STRATEGIES.items():
        data.chunks = type(data.chunks)(data.chunks.fields, data.chunks.most_bytes)
        sampler = BatchSampler(data.cells, axes, batch_size=batch_size, num_batches=2 * steps)
        module = ContrastiveModule(data.shape, model=model, views=data.views).to(device)
        module.standardise(*data.statistics())
        optimizer = torch.optim.AdamW(module.parameters())
        batches, waits, whole = iter(make_loader(data, sampler, num_workers=workers)), [], []
        for _ in range(2 * steps):
            start = time.perf_counter()
            batch = next(batches)
            waits.append(time.perf_counter() - start)
            batch = module.on_after_batch_transfer(module.transfer_batch_to_device(batch, torch.device(device), 0), 0)
            loss = module._loss(batch, "training")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # waits for the device
            whole.append(time.perf_counter() - start)
        for part, which in (("first", slice(1, steps)), ("next", slice(steps, None))):
            share, step = sum(waits[which]) / sum(whole[which]), np.median(whole[which])
            print(
                f"  {name:28} {part} {steps} steps: {share:6.1%} of a step of {1e3 * step:.0f} ms is waiting for data"
            )
        del batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plate", help="a real plate, see conf/recipe/cellphe.yaml")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--steps", type=int, default=12, help="of training")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    sources = {"demo plates": (["data=demo_timelapse"], arguments.batch_size)}
    if arguments.plate:
        sources["real plate"] = (["recipe=cellphe", f"data.path={arguments.plate}"], min(arguments.batch_size, 64))
    for name, (overrides, batch_size) in sources.items():
        data = load(*overrides)
        print(f"{name}: {data!r}, batches of {batch_size}; patches a second:")
        bench_reads(data, batch_size, arguments.batches, arguments.megabytes)
        bench_waiting(data, batch_size, arguments.steps, arguments.workers, arguments.device)


if __name__ == "__main__":
    main()
