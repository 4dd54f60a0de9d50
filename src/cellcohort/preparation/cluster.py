"""Who does the work of a preparation: threads of this process, or the workers of a Dask cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dask.distributed import Client, Future, LocalCluster, wait

WAIT_SECONDS = 30  # for a scheduler to answer, for a first worker of it, and for workers that were lost to come back


@contextmanager
def workers(address: str | None, threads: int) -> Iterator[Client]:
    """Return a client of the cluster at `address`, or without one of so many threads of this process.

    Raises
    ------
    ValueError
        No scheduler answers at `address`, or it has no workers.
    """
    if address is not None:
        with _connected(address) as client:
            yield client
        return
    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": threads, "processes": False}
    options["silence_logs"] = logging.CRITICAL  # an error of a worker is raised here, and need not be told twice
    cluster = LocalCluster(**options, dashboard_address="127.0.0.1:0")
    try:
        with Client(cluster, timeout=WAIT_SECONDS) as client:
            yield client
    finally:
        with suppress(TimeoutError):  # by itself it waits for ever
            cluster.close(timeout=WAIT_SECONDS)


def as_they_finish(client: Client, futures: Sequence[Future]) -> Iterator[Future]:
    """Yield futures as they finish; a wait in which no worker is left ends with an error.

    Raises
    ------
    TimeoutError
        Nothing was finished for 30 seconds, and the cluster has no workers.
    """
    pending = set(futures)
    while pending:
        try:
            found = wait(list(pending), timeout=WAIT_SECONDS, return_when="FIRST_COMPLETED")
        except TimeoutError:
            if not client.nthreads():
                raise TimeoutError(f"no worker is left, and nothing was finished for {WAIT_SECONDS} seconds") from None
            continue
        pending = set(found.not_done)
        yield from found.done


def _connected(address: str) -> Client:
    try:
        client = Client(address, timeout=WAIT_SECONDS)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cluster={address}: no Dask scheduler answers there within {WAIT_SECONDS} seconds ({error}). Start one "
            "(`dask scheduler` prints its address), correct prepare.cluster, or leave it out to work in this process."
        ) from None
    try:
        client.wait_for_workers(1, timeout=WAIT_SECONDS)
    except TimeoutError:
        client.close()
        raise ValueError(
            f"cluster={address}: the Dask scheduler there has 0 workers; 1 was waited for, for {WAIT_SECONDS} seconds. "
            f"Start workers (`dask worker {address}`), or leave prepare.cluster out to work in this process."
        ) from None
    return client
