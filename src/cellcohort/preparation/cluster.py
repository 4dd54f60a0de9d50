"""Who does the work of a preparation: threads of this process, or the workers of a Dask cluster."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from dask.distributed import Client, Future, wait

WAIT_SECONDS = 30  # for a scheduler to answer, for a first worker of it, and for workers that were lost to come back
NAME = "preparation"  # of the threads


class Threads:
    """Threads of this process, used as a Dask client is.

    Dask's own, those of a LocalCluster, are waited for without end where they cannot start.

    Parameters
    ----------
    number : int
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._pool = ThreadPoolExecutor(number, NAME)

    def scatter(self, data: Any, broadcast: bool) -> Any:  # noqa: ARG002
        """Return the data, which all threads see."""
        return data

    def submit(self, work: Callable[..., Any], *arguments: Any, pure: bool) -> concurrent.futures.Future[Any]:  # noqa: ARG002
        """Let a thread do the work.

        Raises
        ------
        RuntimeError
            The system starts no other thread.
        """
        try:
            return self._pool.submit(work, *arguments)
        except RuntimeError as error:
            running = sum(thread.name.startswith(NAME) for thread in threading.enumerate())
            raise RuntimeError(
                f"threads={self._number}: {running} of {self._number} threads of this process were started, and the "
                f"next was not ({error}). Set prepare.threads={max(running, 1)}, or raise the limit of the system on "
                "processes and threads (`ulimit -u`, or that of the container)."
            ) from None

    def cancel(self, futures: Sequence[concurrent.futures.Future[Any]]) -> None:
        """Leave out what no thread has begun."""
        for future in futures:
            future.cancel()

    def close(self) -> None:
        """Wait for what threads have begun."""
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def workers(address: str | None, threads: int) -> Iterator[Client | Threads]:
    """Return a client of the cluster at `address`, or without one so many threads of this process.

    Raises
    ------
    ValueError
        No scheduler answers at `address`, or it has no workers.
    """
    client = Threads(threads) if address is None else _connected(address)
    try:
        yield client
    finally:
        client.close()


def as_they_finish(client: Client | Threads, futures: Sequence[Any]) -> Iterator[Any]:
    """Yield futures as they finish; a wait in which no worker of a cluster is left ends with an error.

    Raises
    ------
    TimeoutError
        Nothing was finished for 30 seconds, and the cluster has no workers.
    """
    if isinstance(client, Threads):
        yield from concurrent.futures.as_completed(futures)
        return
    pending: set[Future] = set(futures)
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
