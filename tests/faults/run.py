"""Inject every fault as often as the table says, and print the table.

python -m tests.faults.run
python -m tests.faults.run --rows EINTR,fork --runs 100
python -m tests.faults.run --short
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.harness.row import Row
from tests.faults.harness.runner import Count, run_row
from tests.faults.rows import ROWS, row_named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows; return 1 if a try did not end as specified."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.run", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default=",".join(row.name for row in ROWS), help="names, with commas between them")
    parser.add_argument("--runs", type=int, help="tries of each row, in place of the row's own number")
    parser.add_argument("--first", type=int, default=0, help="number of the first try, to repeat one")
    parser.add_argument("--short", action="store_true", help="as few tries as the tests make")
    parser.add_argument("--json", type=Path, help="a file for the counts, and for what went wrong")
    options = parser.parse_args(arguments)
    names = [name for name in options.rows.split(",") if name]
    unknown = set(names) - {row.name for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(row.name for row in ROWS)}")
    counts: dict[str, Count] = {}
    print("| fault | specified | tries | as specified | otherwise | hangs |\n|---|---|---|---|---|---|")
    for row in map(row_named, names):
        runs = options.runs or (row.short_runs if options.short else row.runs)
        counts[row.name] = count = run_row(row, runs, options.first)
        print(to_markdown(row, count), flush=True)
        for number, what in [*list(count.wrong.items())[:3], *count.stuck.items()]:
            print(f"try {number} of {row.name}: {what}", file=sys.stderr)
        if options.json is not None:
            options.json.write_text(json.dumps({name: to_json(c) for name, c in counts.items()}, indent=2) + "\n")
    return 0 if all(count.is_good for count in counts.values()) else 1


def to_json(count: Count) -> dict[str, Any]:
    """Return the counts; `dataclasses.asdict` cannot copy a Counter before Python 3.12."""
    return {
        "outcomes": dict(count.outcomes),
        "wrong": count.wrong,
        "hangs": count.hangs,
        "stuck": count.stuck,
        "seconds": count.seconds,
    }


def to_markdown(row: Row, count: Count) -> str:
    """Return the line of the table."""
    summed: Counter[str] = Counter()
    for what, n in count.outcomes.items():  # what stands behind a bar is for other tables
        summed[what.partition(" | ")[0]] += n
    outcomes = ", ".join(f"{n:,} {what}" for what, n in sorted(summed.items()))
    return (
        f"| {row.name}: {row.fault} | {row.expected} | {count.runs:,} | {outcomes or 0} | {len(count.wrong)} "
        f"| {len(count.hangs)} |"
    )


if __name__ == "__main__":
    sys.exit(main())
