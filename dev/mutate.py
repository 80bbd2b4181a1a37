"""Measure the strength of the tests: put small faults into the source, one at a time, and see whether a test fails.

python dev/mutate.py --seed 1 --count 40                         40 mutants, 60 seconds of tests for each
python dev/mutate.py --seed 1 --count 40 --against before.json   the same, compared with an earlier run
python dev/mutate.py --seed 1 --list                             the mutants, without running a test

The seed draws sites of src/zarrfeed/plan, storage and torch; a larger count goes on where a smaller one ends. Each
mutant is tried in a copy of the package, so that nothing happens to the working tree, with the test files nearest to
it: first those of its module, then others until the time is used. Those of its module that start processes come after
the nearest others. A mutant is

- killed, if a test fails that passes without the mutant;
- timed out, which counts as killed, if a test goes on for far longer than without the mutant;
- survived, if no test fails: the tests are too weak, or the mutant changes nothing that can be seen;
- not covered, if none of the tests that ran got to the mutated statement.

The limit is of a clock that stands still while the tests wait for a processor, so that a busy machine takes longer and
comes to the same outcomes. They are written to ``build/mutants.json`` as they come. Exits with 1 if --against finds
fewer mutants killed than before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from mutation.bench import KILLED, Bench, Mutant, Result
from mutation.sites import find_sites

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("zarrfeed/plan", "zarrfeed/storage", "zarrfeed/torch")


def draw(packages: Path, folders: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Return mutants of the folders, which are relative to the folder of packages: at most one of a site."""
    paths = sorted(path for name in folders for path in (packages / name).rglob("*.py"))
    sources = {path.relative_to(packages).as_posix(): path.read_text() for path in paths}
    sites = [(path, site) for path, source in sources.items() for site in find_sites(source)]
    chance = random.Random(seed)
    chance.shuffle(sites)
    return [Mutant(path, site, chance.choice(site.variants)) for path, site in sites[:count]]


def describe(result: Result) -> str:
    """Return an outcome with the test that killed the mutant, or with the number of tests that did not."""
    if result.outcome == "survived":
        tests = sum(name != "import" for name in result.reached_by)
        return f"survived  {tests} tests reach it ({result.seconds} s)"
    return "  ".join([result.outcome, *([result.test] if result.test else []), f"({result.seconds} s)"])


def compare(results: list[Result], earlier: list[Result]) -> tuple[int, int]:
    """Print the mutants whose outcome changed; return the kills of both among the mutants that both have."""
    now = {one.key: one for one in results}
    both = [(one, now[one.key]) for one in earlier if one.key in now]
    for before, after in both:
        if before.outcome != after.outcome:
            test = before.test or after.test
            print(f"src/{after.path}:{after.line}  {before.outcome} -> {after.outcome}  {test or ''}".rstrip())
    kills = tuple(sum(one[side].outcome in KILLED for one in both) for side in (0, 1))
    print(f"killed of {len(both)} mutants that both runs have: {kills[0]} before, {kills[1]} now")
    return kills[0], kills[1]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0)) // 2), help="mutants at once")
    parser.add_argument("--limit", type=float, default=60, help="seconds of tests for each mutant")
    parser.add_argument("--folder", action="append", help=f"in src/, in place of {', '.join(FOLDERS)}")
    parser.add_argument("--source", type=Path, default=ROOT, help="checkout whose src/ is mutated")
    parser.add_argument("--tests", type=Path, default=ROOT, help="checkout whose tests run")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "mutants.json", help="where outcomes are written")
    parser.add_argument("--against", type=Path, help="outcomes of an earlier run")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only mutants with this in their line, such as order.py:45"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants alone")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants; return 1 if fewer are killed than before."""
    options = parse(arguments)
    packages = options.source.resolve() / "src"
    folders = options.folder or list(FOLDERS)
    drawn = draw(packages, folders, options.seed, options.count)
    mutants = [mutant for mutant in drawn if options.only in str(mutant)]
    if not mutants:
        said = f"{len(drawn)} mutants were drawn from {', '.join(folders)} in {packages}, none with {options.only!r}"
        raise SystemExit(f"mutate.py: no mutant to try: {said}; see --folder and --only")
    if options.list:
        print(*mutants, sep="\n")
        return 0
    earlier = read_results(options.against) if options.against else []
    if earlier and not {one.key for one in earlier} & {mutant.key for mutant in mutants}:
        raise SystemExit(f"mutate.py: {options.against} has none of the mutants: give its --seed and the same source")
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True) as name,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        work = Path(name).resolve()
        work.chmod(0o711)  # tests that give up root's rights must be able to reach their files
        bench = Bench(packages, Path(folders[0]).parts[0], options.tests.resolve(), work, options.limit)
        try:
            for mutant, result in zip(mutants, pool.map(bench.try_mutant, mutants), strict=True):
                results.append(result)
                print(f"{mutant}  {describe(result)}", flush=True)
                write_results(options.json, options, results)
        finally:
            bench.close()
            pool.shutdown(cancel_futures=True)
    counts = Counter(result.outcome for result in results)
    print(", ".join(f"{counts[name]} {name}" for name in (*KILLED, "survived", "not covered")))
    if earlier:
        before, now = compare(results, earlier)
        return int(now < before)
    return 0


def read_results(path: Path) -> list[Result]:
    """Return the outcomes that a run wrote."""
    return [Result(**one) for one in json.loads(path.read_text())["mutants"]]


def write_results(path: Path, options: argparse.Namespace, results: list[Result]) -> None:
    """Write the outcomes so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(options, name) for name in ("seed", "count", "limit")}
    path.write_text(json.dumps(settings | {"mutants": [asdict(result) for result in results]}, indent=1))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which removes the copies
    sys.exit(main())
