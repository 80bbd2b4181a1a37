"""What saving and loading a checkpoint costs: our writer and reader, obstore alone, and peers, in turn.

python -m benchmarks.checkpoint
python -m benchmarks.checkpoint --size 256 --rounds 1
python -m benchmarks.checkpoint --delay-ms 20
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.measure import CpuWatch, process_cpu_s
from benchmarks.harness.object_server import BUCKET, options
from benchmarks.harness.options import not_negative, positive
from benchmarks.report.tables import make_console, number, print_rows, say_if_not_quiet
from zarrfeed import checkpoint

#: Exit status: a side loaded something else than was saved.
WRONG = 1

#: What dataflux-pytorch publishes for one checkpoint to a bucket, in MB/s.
DATAFLUX_MB_S = 375

#: What the ratios are to: obstore alone, of the same place and way.
RAW = "obstore"
_PART_BYTES, _REQUESTS = 8 << 20, 16
_TENSORS = 64


@dataclass(frozen=True)
class Side:
    """One way to save or load.

    Attributes
    ----------
    place
        "disk" or "S3".
    way
        "save" or "load".
    name
        What the table calls it.
    run
        Saves the state, or loads and returns it; None where it has nothing to compare.
    """

    place: str
    way: str
    name: str
    run: Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One turn of one side."""

    place: str
    way: str
    side: str
    repeat: int
    bytes: int
    wall_s: float
    cpu_s: float


class Bench:
    """The state, and where it goes.

    Parameters
    ----------
    megabytes
        Of the state, in tensors of equal size.
    directory
        For local checkpoints.
    port
        Of the object server.
    """

    def __init__(self, megabytes: int, directory: Path, port: int) -> None:
        generator = torch.Generator().manual_seed(0)
        elements = megabytes * 10**6 // 4 // _TENSORS
        self.state = {f"layer.{i}": torch.randn(elements, generator=generator) for i in range(_TENSORS)}
        self.bytes = 4 * elements * _TENSORS
        # Of the raw sides: what torch.save makes, already in memory.
        buffer = io.BytesIO()
        torch.save(self.state, buffer)
        self.content = np.frombuffer(buffer.getbuffer(), np.uint8)
        self.directory, self.options = directory, options(port)
        self.client = _client(port)
        self.fsspec: dict[str, Any] = {
            "endpoint_url": f"http://127.0.0.1:{port}",
            "key": "key",
            "secret": "secret",
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def sides(self) -> list[Side]:
        """Return all sides whose packages are here."""
        found = [
            Side("disk", "save", "torch.save and fsync", self._save_plain),
            Side("disk", "save", "zarrfeed", lambda: self._save(str(self.directory / "ours.pt"))),
            Side("disk", "load", "torch.load", lambda: torch.load(self.directory / "plain.pt")),
            Side("disk", "load", "zarrfeed", lambda: self._load(str(self.directory / "ours.pt"))),
            Side("S3", "save", RAW, self._put_raw),
            Side("S3", "save", "zarrfeed, bytes", self._write_bytes),
            Side("S3", "save", "zarrfeed", lambda: self._save(f"s3://{BUCKET}/ours.pt")),
            Side("S3", "load", RAW, self._get_raw),
            Side("S3", "load", "obstore, bytes kept", self._get_kept),
            Side("S3", "load", "zarrfeed, bytes", self._read_bytes),
            Side("S3", "load", "zarrfeed", lambda: self._load(f"s3://{BUCKET}/ours.pt")),
        ]
        if importlib.util.find_spec("s3fs") is not None:
            found += [
                Side("S3", "save", "torch.save to s3fs", self._save_s3fs),
                Side("S3", "load", "torch.load from s3fs", self._load_s3fs),
                Side("S3", "save", "dcp, FsspecWriter", self._save_dcp),
                Side("S3", "load", "dcp, FsspecReader", self._load_dcp),
            ]
        return found

    def check(self, side: Side) -> bool:
        """Run a side once; return whether what it loads is what was saved."""
        found = side.run()
        if found is None:
            return True
        if isinstance(found, np.ndarray):
            return np.array_equal(found, self.content)
        return found.keys() == self.state.keys() and all(torch.equal(found[key], self.state[key]) for key in found)

    def _save_plain(self) -> None:
        with (self.directory / "plain.pt").open("wb") as file:
            torch.save(self.state, file)
            file.flush()
            os.fsync(file.fileno())

    def _save(self, url: str) -> None:
        with checkpoint.writer(url, storage_options=self.options if "://" in url else None) as file:
            torch.save(self.state, file)

    def _load(self, url: str) -> Any:
        with checkpoint.reader(url, storage_options=self.options if "://" in url else None) as file:
            return torch.load(file)

    def _put_raw(self) -> None:
        import obstore

        obstore.put(self.client, "raw", self.content, chunk_size=2 * _PART_BYTES, max_concurrency=_REQUESTS)

    def _get_part(self, begin: int) -> Any:
        import obstore

        end = min(begin + _PART_BYTES, len(self.content))
        found = obstore.get_range(self.client, "raw", start=begin, end=end)
        assert len(found) == end - begin
        return found

    def _get_raw(self) -> None:
        with ThreadPoolExecutor(_REQUESTS) as threads:
            for _ in threads.map(lambda begin: len(self._get_part(begin)), range(0, len(self.content), _PART_BYTES)):
                pass

    def _get_kept(self) -> None:
        with ThreadPoolExecutor(_REQUESTS) as threads:
            kept = list(threads.map(self._get_part, range(0, len(self.content), _PART_BYTES)))
        assert sum(map(len, kept)) == len(self.content)

    def _write_bytes(self) -> None:
        with checkpoint.writer(f"s3://{BUCKET}/bytes", storage_options=self.options) as file:
            for begin in range(0, len(self.content), 16 << 20):
                file.write(self.content[begin : begin + (16 << 20)])

    def _read_bytes(self) -> None:
        buffer = np.empty(4 << 20, np.uint8)
        with checkpoint.reader(f"s3://{BUCKET}/bytes", storage_options=self.options) as file:
            while file.readinto(buffer.data):
                pass

    def _save_s3fs(self) -> None:
        with _fsspec().open(f"s3://{BUCKET}/s3fs.pt", "wb", **self.fsspec) as file:
            torch.save(self.state, file)

    def _load_s3fs(self) -> Any:
        with _fsspec().open(f"s3://{BUCKET}/s3fs.pt", "rb", **self.fsspec) as file:
            return torch.load(file)

    def _save_dcp(self) -> None:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

        writer = FsspecWriter(f"s3://{BUCKET}/dcp", **self.fsspec)
        _dcp().save(self.state, storage_writer=writer, no_dist=True)

    def _load_dcp(self) -> Any:
        from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

        state = {key: torch.zeros_like(tensor) for key, tensor in self.state.items()}
        reader = FsspecReader(f"s3://{BUCKET}/dcp", **self.fsspec)
        _dcp().load(state, storage_reader=reader, no_dist=True)
        return state


def _fsspec() -> Any:
    return importlib.import_module("fsspec")


def _dcp() -> Any:
    return importlib.import_module("torch.distributed.checkpoint")


def _client(port: int) -> Any:
    from obstore.store import S3Store

    url = f"http://127.0.0.1:{port}"
    keys: Any = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    return S3Store(BUCKET, endpoint=url, client_options={"allow_http": True}, **keys)


@contextlib.contextmanager
def _serving(delay_ms: float) -> Iterator[tuple[int, int]]:
    """Start the object server in a process of its own; yield its port and process."""
    command = [sys.executable, "-m", "benchmarks.harness.object_server", "--delay-ms", str(delay_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        watchdog = threading.Timer(60, server.kill)
        watchdog.start()
        port = server.stdout.readline()
        watchdog.cancel()
        try:
            yield int(port), server.pid
        finally:
            server.stdin.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Check each side, measure, print a table; return `WRONG` if a side loads another state."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=positive, default=1000, help="of the state, in MB")
    parser.add_argument("--rounds", type=positive, default=5, help="turns of each side")
    parser.add_argument("--delay-ms", type=not_negative, default=0.0, help="each request waits for so long")
    parser.add_argument("--checksum-only", action="store_true", help="no timing: does each side load what was saved?")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()), help="where local checkpoints go")
    parser.add_argument("--out", type=Path, help="a directory for checkpoint.json")
    chosen = parser.parse_args(arguments)
    os.environ |= {"AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1"}
    console = make_console()
    console.print(machine_line(), highlight=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(dir=chosen.data) as directory, _serving(chosen.delay_ms) as (port, server):
        bench = Bench(chosen.size, Path(directory), port)
        sides = bench.sides()
        for side in sides:
            if not bench.check(side):
                console.print(f"WRONG: {side.name} loaded another state from {side.place}", highlight=False)
                return WRONG
        console.print(f"{len(sides)} sides: what was loaded is what was saved", highlight=False)
        if chosen.checksum_only:
            return 0
        rows, foreign_cores = _measure(bench, sides, chosen.rounds, server)
    columns = ("GB/s", "slowest-fastest", f"of {RAW}", "zarrfeed / it", "CPU s/GB")
    print_rows(console, ("place", "way", "side", *columns), _table(rows), words=3)
    console.print(_LEGEND, highlight=False, soft_wrap=True)
    say_if_not_quiet(console, foreign_cores, "on average")
    if chosen.out is not None:
        write_document(chosen.out / "checkpoint.json", foreign_cores=foreign_cores, rows=[asdict(row) for row in rows])
    return 0


_LEGEND = (
    "GB/s: bytes of tensors (10**9), median of the rounds; ratios are medians of the ratios in a round.\n"
    f"{RAW}: its put of bytes that lie ready; its get_range by {_REQUESTS} threads that drop (or keep) what they get.\n"
    "CPU s/GB: of the client's process; the server takes as much of the same machine.\n"
    f"dataflux-pytorch publishes {DATAFLUX_MB_S} MB/s for one checkpoint, to a bucket of Google's."
)


def _measure(bench: Bench, sides: Sequence[Side], rounds: int, server: int) -> tuple[list[Row], float | None]:
    """Let the sides take turns, each round in another order; return also how many cores others kept busy."""
    rows = []
    watch, server_s, begin = CpuWatch(), process_cpu_s(server), perf_counter()
    for repeat in range(rounds):
        turn = repeat % len(sides)
        for side in (*sides[turn:], *sides[:turn]):
            wall, cpu = perf_counter(), process_time()
            side.run()
            wall_s, cpu_s = perf_counter() - wall, process_time() - cpu
            rows.append(Row(side.place, side.way, side.name, repeat, bench.bytes, wall_s, cpu_s))
    _, foreign_cores = watch.stop()
    if foreign_cores is not None:  # the server is part of what is measured
        foreign_cores -= (process_cpu_s(server) - server_s) / (perf_counter() - begin)
    return rows, foreign_cores


def _table(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    turns: dict[tuple[str, str, str], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        turns[row.place, row.way, row.side][row.repeat] = row
    for (place, way, side), mine in turns.items():
        rates = [row.bytes / row.wall_s / 1e9 for row in mine.values()]
        cpu = median(row.cpu_s / row.bytes * 1e9 for row in mine.values())
        yield (
            *(place, way, side, number(median(rates)), f"{number(min(rates))}-{number(max(rates))}"),
            *(number(_ratio(mine, turns.get((place, way, RAW)))), number(_ratio(turns[place, way, "zarrfeed"], mine))),
            number(cpu),
        )


def _ratio(mine: dict[int, Row], others: dict[int, Row] | None) -> float | None:
    """Return how many times the rate of others mine is: the median of the ratios in a round."""
    return None if others is None else median(others[turn].wall_s / row.wall_s for turn, row in mine.items())
