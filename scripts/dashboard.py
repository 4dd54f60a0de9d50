"""Build the W&B workspace of a sweep: what batches held, training curves, scores by strategy.

    uv run python scripts/dashboard.py outputs/<day>/<time>-sweep --entity my-team

With a key the workspace is saved on W&B and its address printed. Without one, what would be sent is
written to ``dashboard.json`` in the directory.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from cellcohort.comparison.wandb_workspace import continued, logged, place, specification, workspace
from cellcohort.runtime.trackers import has_key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="sweep directory, or run directory")
    parser.add_argument("--entity", default="", help="W&B user or team; needed to save")
    parser.add_argument("--project", help="by default that of the runs")
    parser.add_argument("--group", help="W&B group to show; by default that of the runs, which is the sweep")
    parser.add_argument("--all-runs", action="store_true", help="show all runs of the project, of whatever group")
    options = parser.parse_args()

    names, told = logged(options.directory), place(options.directory)
    project = options.project or told["project"]
    group = None if options.all_runs else options.group or told.get("group")
    rests = continued(options.directory)
    made = workspace(names, options.entity, project, group, [rest["wandb"] for rest in rests.values() if rest["wandb"]])
    for name, rest in rests.items():
        left_out = (
            f"W&B run {rest['wandb']}, its first part, is not shown" if rest["wandb"] else "its first part has none"
        )
        print(f"{name} continues {rest['run']} at step {rest['step']}: {left_out}.")
    failed = ""
    if has_key() and options.entity:
        try:
            print(f"dashboard: {made.save().url}")
            return
        except Exception as error:  # W&B's client raises what its network libraries do
            failed = f"{type(error).__name__}: {error}"
    path = options.directory / "dashboard.json"
    path.write_text(specification(made), encoding="utf-8")
    missing = failed or "no --entity was given" if has_key() else "there is no key"
    entity, directory = options.entity or "<user or team>", shlex.quote(str(options.directory))
    runs = "wandb" if (options.directory / "wandb").is_dir() else "*/wandb"
    print(
        f"Not sent to W&B: {missing}. To send the runs, and then the dashboard:\n"
        f"  wandb login\n  wandb sync --entity {entity} {directory}/{runs}/offline-run-*\n"
        f"  python scripts/dashboard.py {directory} --entity {entity}"
    )
    print(f"dashboard: {path}")
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
