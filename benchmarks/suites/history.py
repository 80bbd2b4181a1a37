"""Keep zarrfeed's ratios to the ceilings by commit, and see whether it became slower than its last row.

    python -m benchmarks.history add        # measure, add a row for each layout, draw docs/pictures/history.svg
    python -m benchmarks.history check      # measure, compare with the last rows of such a machine
    python -m benchmarks.history check --slowdown 0.2   # does it notice?
    python -m benchmarks.history check --wait-for FILE  # write the stores now, measure when FILE is there
    python -m benchmarks.history plot

`add` is for commits that change the speed, on purpose or not; the rows are committed with them. `check` fails if a
layout fell on two tries, and ends a try as soon as its rounds show that the layout did not fall. It succeeds, and says
why, where it cannot judge: the machine is too busy, or the history has no row of such a machine.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import sleep

from rich.console import Console

import zarrfeed
from benchmarks.data.layouts import LAYOUTS, QUICK
from benchmarks.data.stores import Store, prepare_store
from benchmarks.harness.machine import machine_line, processor
from benchmarks.harness.measure import expected_hashes, verify_library_ceiling, verify_loader
from benchmarks.harness.options import names, not_negative, positive
from benchmarks.harness.rounds import Round, Rounds, measure_rounds
from benchmarks.loaders import CEILINGS, LIBRARY_CEILING, LOADERS, OURS, YARDSTICK, Batch, LibraryCeiling, Loader
from benchmarks.report.history import (
    CLOCKS,
    MOST_UNSURE,
    Row,
    Verdict,
    append_rows,
    is_settled,
    judge,
    last_row,
    median_bounds,
    ratios,
    read_history,
    summarise,
    why_not_judged,
)
from benchmarks.report.tables import make_console, print_rows, say_if_not_quiet

_ROOT = Path(__file__).parents[2]
_LAYOUTS = ("A", "D", "E", "G")
_SIDES = (YARDSTICK, LIBRARY_CEILING)
#: `check` and `add` measure in one way, and `add` for longer: most rounds, and the seconds after which a layout ends.
_CHECK, _ADD = (40, 8.0), (100, 60.0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 1 if a layout fell on two tries, or a row cannot be added."""
    options = _parse(arguments)
    console = make_console()
    if options.command == "plot":
        _draw(options.file, options.picture)
        return 0
    console.print(machine_line(), highlight=False, soft_wrap=True)
    if options.command == "check" and (reason := _why_no_check(options)):
        console.print(f"not judged: {reason}", highlight=False, soft_wrap=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="zarrfeed-history-") as temporary:
        directory = options.data or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        return _check(console, directory, options) if options.command == "check" else _add(console, directory, options)


def _prepare(layout: str, directory: Path) -> Store:
    """Return the store of a layout, of which zarrfeed and the ceiling deliver what zarr-python reads."""
    store = prepare_store(LAYOUTS[layout].scaled(QUICK), directory, scale=QUICK)
    expected = expected_hashes(store)  # which has all files in the page cache, too
    verify_library_ceiling(LibraryCeiling(store), expected)
    with closing(LOADERS[OURS](store, 0)) as loader:
        verify_loader(loader, store, expected)
    return store


def _measure(
    store: Store,
    extent: tuple[int, float],
    slowdown: float = 0.0,
    is_settled: Callable[[Sequence[Round]], bool] = lambda _: False,
) -> Rounds:
    rounds, max_s = extent
    ceilings = {name: CEILINGS[name](store) for name in _SIDES}
    with closing(LOADERS[OURS](store, 0)) as loader:
        slowed = Slowed(loader, slowdown) if slowdown else loader
        return measure_rounds(slowed, ceilings, rounds=rounds, max_s=max_s, is_settled=is_settled)


def _why_no_check(options: argparse.Namespace) -> str:
    """Return why no layout can be judged; "" if one can."""
    history, (cpu, cores) = read_history(options.file), processor()
    if any(last_row(history, cpu=cpu, cores=cores, layout=layout) for layout in options.layouts):
        return ""
    return (
        f"{options.file.name} has no row of {cpu} with {cores} cores; "
        "`python -m benchmarks.history add` measures and adds one"
    )


def _check(console: Console, directory: Path, options: argparse.Namespace) -> int:
    history, (cpu, cores) = read_history(options.file), processor()
    stores = dict[str, Store]()
    if options.wait_for:
        stores = {layout: _prepare(layout, directory) for layout in options.layouts}
        _wait_for(options.wait_for)
    begin = time.perf_counter()

    def one_try(layout: str) -> Verdict:
        if time.perf_counter() - begin > options.max_seconds:
            return Verdict(layout, False, f"not judged: the check has taken {options.max_seconds:g} s without it")
        if layout not in stores:
            stores[layout] = _prepare(layout, directory)
        reference = last_row(history, cpu=cpu, cores=cores, layout=layout)
        extent = options.rounds or _CHECK[0], _CHECK[1]
        rounds = _measure(stores[layout], extent, options.slowdown, partial(is_settled, reference=reference))
        say_if_not_quiet(console, rounds.foreign_cores, "on average")
        return judge(layout, rounds, reference, cores)

    fallen = two_tries(options.layouts, one_try, lambda text: console.print(text, highlight=False, soft_wrap=True))
    if fallen:
        console.print(
            f"{', '.join(fallen)}: slower on two tries than the last row of {options.file.name}. If that is the price "
            "of something that is worth it, add rows: python -m benchmarks.history add",
            highlight=False,
            soft_wrap=True,
        )
    return 1 if fallen else 0


def _wait_for(file: Path) -> None:
    while not file.exists():
        sleep(0.5)


def two_tries(layouts: Sequence[str], one_try: Callable[[str], Verdict], say: Callable[[str], object]) -> list[str]:
    """Return the layouts that fell twice; the second tries begin when all layouts had their first one."""
    fallen = list(layouts)
    for number in (1, 2):
        verdicts = [one_try(layout) for layout in fallen]
        for verdict in verdicts:
            say(f"try {number}, {verdict.layout}: {verdict.words}")
        fallen = [verdict.layout for verdict in verdicts if verdict.fell]
    return fallen


def _add(console: Console, directory: Path, options: argparse.Namespace) -> int:
    commit = options.commit or _commit()
    cpu, cores = processor()
    date = datetime.now(UTC).date().isoformat()
    rows = []
    for layout in options.layouts:
        rounds = _measure(_prepare(layout, directory), (options.rounds or _ADD[0], _ADD[1]))
        if reason := why_not_judged(rounds, cores) or _why_unsure(rounds):
            console.print(f"{layout}: no row was added: {reason}", highlight=False, soft_wrap=True)
            return 1
        of_cpu, of_wall = ({name: summarise(ratios(rounds, name, clock)) for name in _SIDES} for clock in CLOCKS)
        foreign = None if rounds.foreign_cores is None else round(rounds.foreign_cores, 2)
        count = len(rounds.turns)
        rows.append(Row(commit, date, cpu, cores, machine_line(), layout, count, foreign, of_cpu, of_wall))
    append_rows(options.file, rows)
    _print(console, rows)
    _draw(options.file, options.picture)
    console.print(f"wrote {len(rows)} rows to {options.file} and drew {options.picture}", soft_wrap=True)
    return 0


def _why_unsure(rounds: Rounds) -> str:
    low, high = median_bounds(ratios(rounds, LIBRARY_CEILING, "cpu"))
    if low > 0 and math.isfinite(high) and high / low <= MOST_UNSURE:
        return ""
    return f"the median lies between {low:.3f} and {high:.3f}, which is too wide: measure when the machine is less busy"


def _commit() -> str:
    """Return the last commit that changed the sources of the zarrfeed that is imported."""
    folder = Path(zarrfeed.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{folder} is in no git repository: say --commit ({done.stderr.strip()})")
        return done.stdout.strip()

    if changed := git("status", "--porcelain", "--untracked-files=no", "--", ":/src", ":/cpp"):
        raise SystemExit(f"what is measured is not committed; commit it, or say --commit:\n{changed}")
    return git("log", "-1", "--abbrev=12", "--format=%h", "--", ":/src", ":/cpp")


def _print(console: Console, rows: Sequence[Row]) -> None:
    columns = ("layout", "rounds", "foreign cores", *(f"{clock} / {name}" for clock in CLOCKS for name in _SIDES))
    cells = [
        (
            row.layout,
            str(row.rounds),
            "" if row.foreign_cores is None else f"{row.foreign_cores:.2f}",
            *(
                f"{(ratio := row.of(clock)[name]).median:.3f} ({ratio.low:.3f}-{ratio.high:.3f})"
                for clock in CLOCKS
                for name in _SIDES
            ),
        )
        for row in rows
    ]
    print_rows(console, columns, cells, words=1)


def _draw(history: Path, picture: Path) -> None:
    from benchmarks.report.history_charts import draw_all

    draw_all(history, picture)


class Slowed:
    """A loader that takes a share more CPU time for each epoch: to see that `check` notices."""

    def __init__(self, loader: Loader, share: float) -> None:
        self._loader, self._share = loader, share
        self.samples_per_epoch, self.settings = loader.samples_per_epoch, loader.settings

    def epoch(self, epoch: int) -> Iterator[Batch]:
        begin = time.process_time()
        yield from self._loader.epoch(epoch)
        until = begin + (1 + self._share) * (time.process_time() - begin)
        while time.process_time() < until:
            pass

    def close(self) -> None:
        self._loader.close()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.history", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("add", "check", "plot"))
    add = parser.add_argument
    add("--layouts", type=names(LAYOUTS), default=list(_LAYOUTS), help=f"default: {','.join(_LAYOUTS)}")
    add("--rounds", type=positive, help=f"default: {_ADD[0]} of add, {_CHECK[0]} of check")
    add("--slowdown", type=not_negative, default=0.0, help="check zarrfeed with this share of CPU time added")
    add("--max-seconds", type=not_negative, default=60.0, help="no try of check begins later; default: 60")
    add("--wait-for", type=Path, help="a file: check writes its stores, and measures when somebody has made this file")
    add("--commit", help="what is measured, if that is not the commit of the imported sources")
    add("--file", type=Path, default=_ROOT / "benchmarks" / "history.jsonl")
    add("--picture", type=Path, default=_ROOT / "docs" / "pictures" / "history.svg")
    add("--data", type=Path, help="where stores are kept; default: a temporary directory")
    return parser.parse_args(arguments)
