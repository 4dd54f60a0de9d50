"""Every fault in the handbook is shown by a test, and its SLURM script asks for what there is."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from pathlib import Path

import hydra
import pytest
from hydra.core.config_store import ConfigStore
from hydra_plugins.hydra_submitit_launcher.config import SlurmQueueConf
from torch.distributed.run import get_args_parser

ROOT = Path(__file__).parents[2]
COLUMNS = ["What happens", "What cellcohort does", "How long it takes", "What is kept", "Shown by"]


def rows() -> list[list[str]]:
    lines = [line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_row_of_the_table_is_shown_by_a_test_that_there_is() -> None:
    titles, _, *faults = rows()
    assert titles == COLUMNS and len(faults) >= 15
    for fault, *_, shown in faults:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", shown)
        assert named, f"no test shows: {fault}"
        for file, name in named:
            there = ast.parse((ROOT / file).read_text()).body
            assert name in {node.name for node in there if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"


def block(containing: str) -> str:
    """An indented block of the page on several processes."""
    text = (ROOT / "docs" / "running.md").read_text()
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", text, re.MULTILINE)
    (found,) = [each for each in blocks if containing in each]
    return re.sub(r"^    ", "", found, flags=re.MULTILINE).strip("\n")


def test_the_slurm_script_is_one_of_bash_and_names_options_that_there_are(tmp_path: Path) -> None:
    script = block("#SBATCH")
    (tmp_path / "job.sh").write_text(script)
    subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=True)
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?", script, re.MULTILINE))
    assert (
        {"requeue", "signal", "time", "open-mode"} < set(asked)
        and asked["nodes"] == "2"
        and asked["gpus-per-node"] == "4"
    )
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    launch = words[words.index("torchrun") + 1 :]
    options = get_args_parser().parse_args([word.replace("$SLURM_NNODES", "2") for word in launch])
    assert options.nnodes == "2" and options.nproc_per_node == "4" and options.rdzv_backend == "c10d"
    assert options.training_script == "scripts/train.py"
    with hydra.initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        taken = [word for word in options.training_script_args if "$" not in word and not word.startswith(")")]
        hydra.compose("train", taken[: next((i for i, word in enumerate(taken) if "=" not in word), None)])


@pytest.mark.filterwarnings("ignore")
def test_the_options_of_submitit_are_those_of_its_launcher() -> None:
    command = block("hydra/launcher=submitit_slurm").replace("\\\n", " ")
    assert ConfigStore.instance().load("hydra/launcher/submitit_slurm.yaml")
    asked = dict(re.findall(r"hydra\.launcher\.(\w+)=(\S+)", command))
    assert set(asked) <= set(SlurmQueueConf.__dataclass_fields__) and {"gpus_per_node", "max_num_timeout"} < set(asked)
