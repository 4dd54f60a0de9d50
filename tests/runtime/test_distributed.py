"""What processes of one launch agree on."""

from __future__ import annotations

import os

import pytest
from torch.distributed import HashStore

from cellcohort.runtime import distributed
from cellcohort.runtime.distributed import Launch


@pytest.mark.parametrize(("restarts", "world_size", "renewed"), [("0", 2, False), ("1", 1, False), ("1", 2, True)])
def test_a_restarted_launch_gets_a_store_without_addresses_of_ended_processes(
    restarts: str, world_size: int, renewed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = HashStore()
    monkeypatch.setattr(distributed, "launch_store", lambda: kept)
    for name, value in {"RUN_ID": "x", "RESTART_COUNT": restarts, "USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("MASTER_PORT", "1")
    Launch(0, world_size).renew_store()
    assert (os.environ["MASTER_PORT"] != "1") == renewed
    assert (os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False") == renewed
