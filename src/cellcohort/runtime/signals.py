"""Signals that stop a command: SIGTERM, as schedulers send it, and SIGINT, which is Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

STOPPING = (signal.SIGTERM, signal.SIGINT)
AGAIN = 1.0  # seconds after which a second Ctrl-C is one more, and not the same that reached the process twice

_handled = False  # whether the handlers of this module are in place
_deferred = False  # whether a signal waits until the work in hand allows to stop
_forward: Callable[[int], None] | None = None
_received: signal.Signals | None = None
_at = 0.0


class Stopped(SystemExit):
    """A signal stopped the command. The exit code is 128 and the number of the signal: 143 or 130.

    Parameters
    ----------
    number : signal.Signals
        The signal.

    Attributes
    ----------
    how_to_go_on : str
        What the last line of the command tells, such as the command that goes on.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(128 + number)
        self.signal = number
        self.how_to_go_on = "Start the same command again."

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.signal,)

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}"


@contextmanager
def stoppable(forget: bool = True) -> Iterator[None]:
    """Let SIGTERM and SIGINT raise :class:`Stopped` in this process while the block runs.

    Within another such block this one does nothing, and neither does it outside the main thread.

    Parameters
    ----------
    forget : bool
        Whether a later block of this process may run after a signal; a worker of a sweep begins no other job.
    """
    global _handled, _received
    if _handled or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    _handled = True
    handle()
    try:
        raise_if_received()
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _handled = False
        if forget:
            _received = None


def handled() -> bool:
    """Whether a command of this process, and not only one of its jobs, is stopped by signals."""
    return _handled


def handle() -> None:
    """Put the handlers in place, also where a library has put its own since :func:`stoppable`."""
    if _handled:
        for number in STOPPING:
            signal.signal(number, _on_signal)


@contextmanager
def deferred(forward: Callable[[int], None] | None = None) -> Iterator[None]:
    """Let a signal wait for the end of the block, which then raises :class:`Stopped`.

    Parameters
    ----------
    forward : callable, optional
        Is called with the signal at once, to stop other processes that the block waits for.
    """
    global _forward
    defer(True)
    _forward = forward
    try:
        yield
    finally:
        _forward = None
        defer(False)
    raise_if_received()


def defer(on: bool) -> None:
    """Let a signal wait until :func:`received` is looked at, or raise at once."""
    global _deferred
    _deferred = on


def received() -> signal.Signals | None:
    """Return the signal that came while signals were deferred, if any."""
    return _received


def stop() -> NoReturn:
    """Stop as after a signal, also where another rank received it.

    Once this rank ends, a launcher sends SIGTERM to those that still end: it counts as the same signal.

    Raises
    ------
    Stopped
        Always.
    """
    global _received
    _received = _received or signal.SIGTERM
    raise Stopped(_received)


def raise_if_received() -> None:
    """Stop, if a signal came before."""
    if _received is not None:
        raise Stopped(_received)


def leave_process_group(worker: int = 0) -> None:  # noqa: ARG001
    """Let a worker process of a loader live on when Ctrl-C or a launcher signals the group of the main process.

    The main process ends its workers, after the step in hand.
    """
    os.setpgid(0, 0)


def _on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    global _received, _at
    now, first = time.monotonic(), _received is None
    again = number == signal.SIGINT and now - _at > AGAIN
    _received, _at = signal.Signals(number) if _received is None else _received, now
    if _forward is not None:
        _forward(number)
    if _deferred and (first or not again):
        if first and os.environ.get("RANK", "0") == "0":
            print(f"{_received.name}: stopping after the step in hand.", file=sys.stderr, flush=True)
        return
    if first or again:
        raise Stopped(_received)
