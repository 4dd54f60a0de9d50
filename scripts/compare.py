"""Compare the finished runs of a sweep: a table with intervals, figures, and a report to open in a browser.

Commands

  python scripts/compare.py outputs/<day>/<time>-sweep
  python scripts/compare.py outputs/strategies outputs/leaks --scores condition_probe_across

It writes scores.csv (the table), scores.md, report.html and pictures/ to comparison/ in the first directory, or to the
directory of --out.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from cellcohort.comparison import (
    arms_of,
    behind_baselines,
    compare,
    continued,
    counted,
    coverage_of_intervals,
    maps,
    markdown,
    read_runs,
    remarks,
    scored_otherwise,
    terminal,
)
from cellcohort.comparison.composition import held
from cellcohort.comparison.figures import pictures, save
from cellcohort.comparison.report import report
from cellcohort.comparison.table import REFERENCE
from cellcohort.files import NO_SPACE, is_refused, whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path, help="sweep directories, or run directories")
    parser.add_argument("--reference", default=REFERENCE, help="strategy that the others are compared with")
    parser.add_argument(
        "--scores",
        nargs="+",
        help="scores to test; fewer make stronger tests (default: those of evaluation.scores; all: every score)",
    )
    parser.add_argument(
        "--allow-different", action="store_true", help="compare runs of different data or budgets, and report these"
    )
    parser.add_argument("--out", type=Path, help="directory to write to, instead of comparison/ in the first one")
    parser.add_argument("--no-umap", action="store_true", help="only principal components, which take no time")
    options = parser.parse_args()

    runs, left_out = read_runs(options.directories)
    for run in left_out:
        print(f"left out: {run.directory}: {run.reason}", file=sys.stderr)
    arms = arms_of(runs, options.allow_different)
    named = counted(runs) if options.scores is None else []
    table = compare(arms, options.reference, None if options.scores == ["all"] else options.scores or named or None)

    place = options.out or options.directories[0] / "comparison"
    place.mkdir(parents=True, exist_ok=True)
    with whole(place / "scores.csv") as file:
        table.to_csv(file, index=False)
    before = f"The scores that count were named before training: {', '.join(named)}. --scores all shows every score."
    said = [*scored_otherwise(arms, options.reference, [*table["score"].unique()])]
    said += [*remarks(table, options.reference, left_out), coverage_of_intervals(runs), *continued(runs)]
    said = [remark for remark in said if remark]
    said = [before, *said] if named else said
    with whole(place / "scores.md") as file:
        file.write_text(markdown(table, options.reference, [*behind_baselines(table), *said]), encoding="utf-8")
    with_umap = not options.no_umap and maps.has_umap()
    slow = ", UMAP among them, which takes longest (--no-umap leaves it out)" if with_umap else ""
    print(f"comparison: drawing pictures{slow}", file=sys.stderr, flush=True)
    contents = held(arms)
    drawn = pictures(arms, table, contents, options.reference, with_umap=with_umap)
    save(drawn, place / "pictures")
    title = f"Sampling strategies of {', '.join(directory.resolve().name for directory in options.directories)}"
    html = report(title, arms, table, contents, said, drawn, options.reference)
    with whole(place / "report.html") as file:
        file.write_text(html, encoding="utf-8")
    print(terminal(table, options.reference), *behind_baselines(table), *said, sep="\n\n")
    print(f"comparison: {place}")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough, as in `compare.py <sweep> | head`; every file is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.errno in NO_SPACE:
            sys.exit(f"error: {error.strerror}")
        if not is_refused(error):
            raise
        sys.exit(f"error: {error.strerror}: {error.filename}. Name a place that may be written to: --out <directory>")
