"""Record how the package behaves, and check that it still does: the proof that a move changed nothing.

python dev/replay.py record                     write dev/recording/record.txt
python dev/replay.py check                      compare with it; exits with 1 if anything differs
python dev/replay.py check --without core,decodes,memory      leave some aspects out
python dev/replay.py check --only 17            one configuration alone, or several: --only 17,18
python dev/replay.py check --only 17 --show     with everything that is observed of it, to diff by hand
python dev/replay.py show 17 --aspect order     the same without a record: its program, and one aspect

From a seed 460 configurations are drawn: small programs that make stores and read them. Of each the record has
digests of

- `order`: `sample_order` of three epochs, and of all ranks;
- `state`: `state_dict()` at several points of a pass;
- `batches`: the first batches of two epochs, of simulated DataLoader workers, and of requests by index;
- `resume`: what comes after each of these states is loaded, on the same setup and on another one;
- `core`: everything that is handed to the compiled engine;
- `data`: fields, lengths, channels and locations of samples;
- `numbers`, `memory`, `decodes`, `page`: the figures of `explain()`, those about memory, those about what is decoded,
  and all that its page has;
- `words`: texts for people, which may change: they are counted, and nothing more;
- `refused`: which steps are refused, with which class. The texts of refusals are recorded as they are. Those that
  changed are listed, to be read; with --strict they are failures.

Some states are recorded as they are, and loaded by the check: states that were saved before must go on as they began.
A second part of the record has the refusals of wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before NumPy is imported: a process with threads must not fork

from recording.canonical import digest  # noqa: E402
from recording.draw import Configuration, draw  # noqa: E402
from recording.forks import run_forked  # noqa: E402
from recording.observe import ASPECTS, WORDS, Observation, observe, prepared  # noqa: E402
from recording.record import Entry, Record, shortened  # noqa: E402
from recording.refusals import calls, expressions, outcomes_of  # noqa: E402

RECORD = Path(__file__).resolve().parent / "recording" / "record.txt"
SEED, COUNT = 1, 460
#: Every so many configurations have a state recorded as it is.
SAVED_EVERY = 9
LIMIT_S = 300.0
#: Processes that try wrong arguments.
_PARTS = 2
_WRONG = "wrong"


def run(
    configurations: Sequence[Configuration], *, jobs: int, folder: Path, saved: dict[int, str] | None = None
) -> Iterator[tuple[Configuration, Observation | str]]:
    """Observe configurations in processes of their own; the error as text, where a process failed."""

    def one(configuration: Configuration) -> Observation:
        own_folder = folder / f"{configuration.number:05d}"
        own_folder.mkdir()
        os.chdir(own_folder)
        return observe(configuration.text, own_folder, (saved or {}).get(configuration.number))

    return run_forked(configurations, one, processes=jobs, limit_s=LIMIT_S)


def entry_of(observation: Observation, *, keeps_state: bool) -> Entry:
    """Return what is recorded of an observation."""
    digests = {aspect: digest("\n".join(observation.texts.get(aspect, []))) for aspect in ASPECTS}
    saved = observation.saved if keeps_state else None
    return Entry(
        digests,
        tuple(shortened(f"{where}: {kind}: {text}") for where, kind, text in observation.refusals),
        None if saved is None else (saved[0], digest("\n".join(saved[1]))),
    )


def observe_all(
    options: argparse.Namespace, numbers: Sequence[int], earlier: Record | None
) -> Iterator[tuple[Configuration, Entry | str]]:
    """Observe configurations, as many at once as the options say."""
    configurations = [draw(options.seed, number) for number in numbers]
    saved = {} if earlier is None else {n: one.saved[0] for n, one in earlier.entries.items() if one.saved is not None}
    with tempfile.TemporaryDirectory(prefix="replay-", dir=options.folder, ignore_cleanup_errors=True) as name:
        for configuration, seen in run(configurations, jobs=options.jobs, folder=Path(name).resolve(), saved=saved):
            if isinstance(seen, str):
                yield configuration, seen
            elif seen.failed:
                yield configuration, seen.failed
            else:
                yield configuration, entry_of(seen, keeps_state=configuration.number % SAVED_EVERY == 0)


def record(options: argparse.Namespace) -> int:
    """Write the record; return 1 if a configuration failed."""
    began, made, failed = time.monotonic(), Record(options.seed, options.count), 0
    for configuration, seen in observe_all(options, range(options.count), None):
        if isinstance(seen, str):
            failed += 1
            print(f"configuration {configuration.number} failed:\n{configuration.text}\n{seen}", flush=True)
        else:
            made.entries[configuration.number] = seen
    outcomes, broken = try_calls(options)
    made.refusals = outcomes
    failed += len(broken)
    print(*broken, sep="\n", end="")
    made.write(options.record)
    refused = sum(bool(entry.refusals) for entry in made.entries.values())
    print(
        f"{len(made.entries)} configurations, {refused} of them with refusals, and "
        f"{sum(map(len, made.refusals.values()))} wrong arguments: {options.record.stat().st_size} bytes, "
        f"{time.monotonic() - began:.0f} s"
    )
    return int(failed > 0)


def try_calls(options: argparse.Namespace) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Try wrong arguments; return the outcomes of each call, and the errors of processes that failed."""
    outcomes: dict[str, tuple[str, ...]] = {}
    failed: list[str] = []
    tried = calls()
    with tempfile.TemporaryDirectory(prefix="replay-", dir=options.folder, ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()

        def one(part: int) -> dict[str, tuple[str, ...]]:
            own_folder = folder / f"part{part}"
            own_folder.mkdir()
            os.chdir(own_folder)
            return outcomes_of(tried[part::_PARTS], own_folder)

        for part, found in run_forked(range(_PARTS), one, processes=options.jobs, limit_s=LIMIT_S):
            if isinstance(found, str):
                failed.append(f"part {part} of the wrong arguments failed:\n{found}\n")
            else:
                outcomes |= found
    return {call: outcomes[call] for call in tried if call in outcomes}, failed


def check(options: argparse.Namespace) -> int:
    """Compare with the record; return 1 if something differs that must not."""
    began, earlier = time.monotonic(), Record.read(options.record)
    options.seed = earlier.seed
    left_out = set(options.without) | set(WORDS)
    numbers = sorted(earlier.entries) if options.only is None else [one for one in options.only if one != _WRONG]
    differing: Counter[str] = Counter()
    words, texts = 0, []
    for configuration, seen in observe_all(options, numbers, earlier):
        before = earlier.entries.get(configuration.number)
        if before is None:
            raise SystemExit(f"replay.py: the record has no configuration {configuration.number}")
        if isinstance(seen, str):
            differing["failed"] += 1
            print(f"{configuration.number} failed: {configuration.summary}\n{seen}", flush=True)
            continue
        found = before.differences(seen)
        words += sum(aspect in WORDS for aspect in found)
        texts += [(f"configuration {configuration.number}", *pair) for pair in before.changed_texts(seen)]
        found = [aspect for aspect in found if aspect not in left_out]
        differing.update(found)
        if found:
            print(f"{configuration.number} differs in {', '.join(found)}: {configuration.summary}", flush=True)
        if options.show:
            show(options, configuration.number)
    if options.only is None or _WRONG in options.only:
        outcomes, broken = try_calls(options)
        differing.update(["failed"] * len(broken))
        print(*broken, sep="\n", end="")
        for call, number, is_text, old, new in earlier.changed_refusals(outcomes):
            name = expressions(call)[number]
            if is_text:
                texts.append((name, old, new))
            else:
                differing["refusals"] += 1
                print(f"{name}\n  was {old}\n  is  {new}", flush=True)
    for name, old, new in texts:
        print(f"another text: {name}\n  was {old}\n  is  {new}")
    said = ", ".join(f"{count} in {aspect}" for aspect, count in differing.most_common()) or "nothing differs"
    print(f"{len(numbers)} configurations: {said}; {words} have other words, {len(texts)} refusals another text")
    print(f"{time.monotonic() - began:.0f} s" + f"; python {Path(sys.argv[0]).name} show N shows one" * bool(differing))
    return int(bool(differing) or (options.strict and bool(texts)))


def show(options: argparse.Namespace, number: int) -> int:
    """Print the program of a configuration, and what is observed of it."""
    configuration = draw(options.seed, number)
    print(f"# configuration {number}\n{configuration.text}\n")
    with tempfile.TemporaryDirectory(prefix="replay-", dir=options.folder, ignore_cleanup_errors=True) as name:
        (pair,) = run([configuration], jobs=1, folder=Path(name).resolve())
    seen = pair[1]
    if isinstance(seen, str):
        print(seen)
        return 1
    for aspect, lines in seen.texts.items():
        if options.aspect is None or aspect in options.aspect:
            print(f"# {aspect}", *lines, sep="\n")
    if seen.failed:
        print(f"# failed\n{seen.failed}")
    return int(bool(seen.failed))


def _only(text: str) -> list[int | str]:
    return [one if one == _WRONG else int(one) for one in text.split(",")]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=max(1, len(os.sched_getaffinity(0))), help="processes at once")
    parser.add_argument("--folder", type=Path, help="where stores are made; else where temporary files are")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("record", "check", "show"):
        command = commands.add_parser(name)
        command.add_argument("--record", type=Path, default=RECORD)
        command.add_argument("--seed", type=int, default=SEED)
        command.add_argument("--jobs", type=int, default=argparse.SUPPRESS)
        if name != "record":
            command.add_argument("--aspect", type=lambda text: text.split(","), metavar="ASPECT,ASPECT")
        if name == "record":
            command.add_argument("--count", type=int, default=COUNT)
        elif name == "check":
            command.add_argument("--only", type=_only, metavar="N,N", help=f"numbers; {_WRONG!r} for wrong arguments")
            command.add_argument("--without", type=lambda text: text.split(","), default=[], metavar="ASPECT,ASPECT")
            command.add_argument("--show", action="store_true", help="print what is observed of each, to diff by hand")
            command.add_argument("--strict", action="store_true", help="another text of a refusal is a failure")
        else:
            command.add_argument("number", type=int)
    options = parser.parse_args(arguments)
    for aspect in [*getattr(options, "without", []), *(getattr(options, "aspect", None) or [])]:
        if aspect not in (*ASPECTS, "said", "saved"):
            parser.error(f"no aspect {aspect!r}, must be one of {', '.join(ASPECTS)}, said, saved")
    if getattr(options, "show", False) and options.only is None:
        parser.error("--show is for some configurations: give --only")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    options = parse(arguments)
    prepared()
    if options.command == "show":
        return show(options, options.number)
    return record(options) if options.command == "record" else check(options)


if __name__ == "__main__":
    sys.exit(main())
