"""Reads back what the W&B client wrote on disk."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import wandb
from wandb.proto.wandb_internal_pb2 import Record

HEADER, BLOCK, WHOLE_OR_LAST = 7, 32768, (1, 4)


def records(path: Path) -> list[Any]:
    """The records of a ``.wandb`` file: pieces of protocol buffers in blocks, as LevelDB lays out its log."""
    wandb.teardown()  # the service that writes the file may lag behind the end of a run, though not of a process
    data, at, entry, found = path.read_bytes(), HEADER, b"", []
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        entry, at = entry + data[at + HEADER : at + HEADER + length], at + HEADER + length
        if kind in WHOLE_OR_LAST:
            found.append(Record.FromString(entry))
            entry = b""
    return found


def of(found: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]


def history(found: list[Any]) -> list[dict[str, Any]]:
    """The logged rows."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for row in of(found, "history")
    ]


def config(found: list[Any]) -> dict[str, Any]:
    """The config of the run, as its last update left it."""
    updates = [run.config for run in of(found, "run")] + of(found, "config")
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for u in updates for item in u.update}
