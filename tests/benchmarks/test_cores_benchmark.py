"""benchmarks/suites/cores.py at its small size, what its page calculates, and what it asks of the machine."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness import deadline, perf_counters, stream
from benchmarks.harness.compile import NoCompilerError
from benchmarks.harness.file_server import serving_files
from benchmarks.harness.numa import nodes, parse_cpus, threads_of_a_core
from benchmarks.report.cores_page import beyond_the_loop, consumer_bound, efficiency, page
from benchmarks.suites import cores, locks
from benchmarks.suites.cores_probe import PATCHES, REMOTE, ROWS, Task, measure
from benchmarks.suites.locks import Locks, Mutex

SHORT = ["--scale", "small", "--seconds", "0.01", "--warm", "0", "--rounds", "1"]


def test_a_run_measures_rates_locks_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # a process of its own measures locks: see test_locks_benchmark.py
    monkeypatch.setattr(locks, "measure", lambda case, *_: Locks(case, 100e-6, (Mutex(1, 1e-6, 0.0),)))
    first = min(os.sched_getaffinity(0))
    monkeypatch.setattr(cores, "nodes", lambda: {0: [first], 1: sorted(os.sched_getaffinity(0) - {first})})
    options = [*SHORT, "--cases", "D-1024,remote", "--threads", "1,64"]
    assert cores.main([*options, "--data", str(tmp_path / "data"), "--out", str(tmp_path)]) == 0, capsys.readouterr()
    document = json.loads((tmp_path / "cores.json").read_text())
    threads = sorted({1, len(os.sched_getaffinity(0))})
    assert document["threads"] == threads
    assert [row["threads"] for row in document["stream"] if not row["on_one_node"]] in (threads, [])  # no compiler
    parts = {part["case"]: part for part in document["parts"] if part["where"] == "all cores"}
    assert list(parts) == ["D-1024", REMOTE]
    for case, part in parts.items():
        assert [row["threads"] for row in part["rows"]] == threads, case
        assert all(row["ours"] > 0 < row["loop"] for row in part["rows"]), case
        assert list(part["counters"]) == [str(one) for one in threads], case
    assert [found["layout"] for found in document["locks"]] == ["D-1024"]
    bound = {part["case"]: part for part in document["parts"] if part["where"] == "node 0"}
    assert {case: [row["threads"] for row in part["rows"]] for case, part in bound.items()} == {
        "D-1024": [1],
        REMOTE: [1],
    }
    assert [row["threads"] for row in document["stream"] if row["on_one_node"]] in ([1], [])
    written = (tmp_path / "cores.md").read_text()
    assert "A check that everything runs, and no result" in written
    assert "## Rates" in written
    assert (tmp_path / "cores.png").stat().st_size > 0


def test_every_other_case_reads_beside_its_loop(tmp_path: Path) -> None:
    for case in (*(name for name in ROWS if name != "D-1024"), PATCHES):
        found = measure(Task(case, "small", str(tmp_path), [1], 0.001, 0.0, 1))
        (row,) = found["rows"]
        assert row["ours"] > 0 < row["loop"], case
        assert found["batch_bytes"] > 0, case


def test_what_fails_or_has_no_time_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = ["--data", str(tmp_path / "data"), "--out", str(tmp_path)]
    assert cores.main([*SHORT, "--limit", "0.000001", *folders]) == 0
    written = (tmp_path / "cores.md").read_text()
    assert "- A on all cores: no time was left" in written
    for part in ("memory bandwidth on 1 threads", "locks of B-zstd"):
        assert f"- {part}: no time was left" in written
    monkeypatch.setattr(cores, "find_spec", lambda _: None)
    monkeypatch.setattr(cores, "asdict", lambda _: {})  # a task that no process understands
    monkeypatch.setattr(cores, "memory_gb_per_s", lambda *_, **__: 1.0)
    assert cores.main([*SHORT, *folders, "--cases", "patches,remote"]) == 1
    document = json.loads((tmp_path / "cores.json").read_text())
    assert document["failed"] == ["patches on all cores: its process ended with 1"]
    assert document["left_out"] == ["remote on all cores: obstore is not installed"]


def test_no_part_begins_behind_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now))
    limit = deadline.Deadline(10)
    assert limit.allows("all of it", 10)
    assert not limit.allows("more", 10.1)
    now = 110.0
    assert not limit.allows("nothing", 0)
    assert limit.left_out == ["more: no time was left", "nothing: no time was left"]
    assert deadline.Deadline(None).allows("a year", 3e7)


def test_threads_are_no_more_than_cores() -> None:
    assert cores.usable_threads([1, 4, 16], 16) == [1, 4, 16]
    assert cores.usable_threads([1, 4, 16], 32) == [1, 4, 16]
    assert cores.usable_threads([1, 4, 16], 6) == [1, 4, 6]
    assert cores.usable_threads([1, 4, 16], 1) == [1]
    assert cores.usable_threads([4, 16], 2) == [2]


def part(ours: dict[int, float], loop: dict[int, float], batch_us: float) -> dict[str, Any]:
    """Return layout A in batches of 1 MB, with two rounds: in the second one everything is twice as fast."""
    rows = [
        {
            "threads": threads,
            "repeat": repeat,
            "ours": (1 + repeat) * ours[threads],
            "loop": (1 + repeat) * loop[threads],
            "cpu_s_per_gb": 0.25,
            "batch_us": batch_us,
            "foreign_cores": 0.0,
        }
        for threads in ours
        for repeat in range(2)
    ]
    names = {"case": "A", "where": "all cores", "description": "rows"}
    return {**names, "batch_bytes": 10**6, "rows": rows, "counters": {}}


def test_the_model_is_compared_with_what_zarrfeed_loses_beyond_the_loop() -> None:
    # medians of 1.5 times these: zarrfeed has 0.5 of linear scaling on 8 threads, the loop has 0.8
    measured = part({1: 2.0, 8: 8.0}, {1: 3.0, 8: 19.2}, batch_us=50.0)
    assert efficiency({1: 2.0, 8: 8.0}) == {1: 1.0, 8: 0.5}
    assert efficiency({2: 4.0, 8: 8.0}) == {2: 1.0, 8: 0.5}
    assert beyond_the_loop(measured) == pytest.approx({1: 1.0, 8: 0.625})
    # a batch of 1 MB in 50 us is 20 GB/s, and 8 times 3 GB/s would be linear
    assert consumer_bound(measured) == pytest.approx({1: 1.0, 8: 20 / 24})
    of_locks = Locks("A", 100e-6, (Mutex(1, 10e-6, 0.25),))
    document = {
        "machine_line": "a machine",
        "nodes": {"0": [0, 1, 2, 3], "1": [4, 5, 6, 7]},
        "threads_of_a_core": 2,
        "is_check": False,
        "stream": [{"threads": 1, "on_one_node": False, "gb_per_s": 10.0}],
        "parts": [measured],
        "locks": [{"measured_on": 8, **asdict(of_locks)}],
        "server": "",
        "failed": [],
        "left_out": [],
    }
    written = page(document)
    by_locks = of_locks.efficiency(8)  # 0.8 busy: waits of 20 us a chunk
    assert by_locks == pytest.approx(100 / 120)
    assert f"| A | 8 | 0.833 | 0.833 | 0.833 | 0.625 | {0.625 - 20 / 24:+.3f} |" in written
    assert "| A | 8 | 100 | 1.0 | 10.00 | 25.0 % | 80.0 % |" in written
    assert "Not quiet" not in written
    for case, is_said in (("remote", False), ("A", True)):  # a server of our own is no other
        busy = {**measured, "case": case, "rows": [{**row, "foreign_cores": 1.25} for row in measured["rows"]]}
        assert ("others kept up to 1.2 cores busy" in page({**document, "parts": [busy]})) == is_said, case
    assert "2 memory nodes, by usable cores: node 0 with 4, node 1 with 4. A core has 2 hardware threads." in written


def test_nodes_have_the_cores_that_this_process_may_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_cpus("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_cpus("\n") == []  # a node of memory alone
    for name, cpus in {"node10": "8-15\n", "node2": "0-3,16\n", "node3": "\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cpus)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 8, 16})
    assert nodes(tmp_path) == {2: [1, 2, 16], 10: [8]}
    assert nodes(tmp_path / "none") == {0: [1, 2, 8, 16]}
    assert threads_of_a_core(tmp_path) is None


def test_memory_is_moved_by_as_many_threads_as_asked_for() -> None:
    cpu = min(os.sched_getaffinity(0))
    try:
        assert stream.memory_gb_per_s(3, seconds=0.01, cpus=[cpu], mib=1) > 0
    except NoCompilerError as error:
        pytest.skip(str(error))


def test_counters_are_told_or_why_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "# started\n\n123,,cycles:u,0,100.00,,\n<not supported>,,cache-misses:u,0,100.00,,\n4.5,msec,task-clock,1,1\n"
    )
    assert perf_counters.parse_counts(text) == {"cycles:u": 123, "task-clock": 4.5}
    with perf_counters.PerfCounters() as found:
        sum(range(1000))
    assert bool(found.counts) != bool(found.why_not)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with perf_counters.PerfCounters() as none:
        pass
    assert (none.counts, none.why_not) == ({}, "perf is not installed")


def test_files_are_served_whole_and_in_ranges_by_several_processes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 300
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a file").write_bytes(content)
    (tmp_path.parent / "outside").write_bytes(b"secret")

    def get(path: str, asked: str = "") -> tuple[int, bytes, str]:
        request = urllib.request.Request(f"{url}/{path}", headers={"Range": asked} if asked else {})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read(), response.headers.get("Content-Range", "")
        except urllib.error.HTTPError as error:
            return error.code, b"", ""

    with serving_files(tmp_path, 2) as url:
        for _ in range(4):
            assert get("folder/a%20file") == (200, content, "")
        assert get("folder/a%20file", "bytes=10-19") == (206, content[10:20], "bytes 10-19/76800")
        assert get("folder/a%20file", "bytes=76790-99999") == (206, content[-10:], "bytes 76790-76799/76800")
        assert get("folder/a%20file", "bytes=76700-") == (206, content[-100:], "bytes 76700-76799/76800")
        assert get("folder/a%20file", "bytes=-7") == (206, content[-7:], "bytes 76793-76799/76800")
        for path in ("folder", "folder/none", "../outside", "%2e%2e/outside"):
            assert get(path)[0] == 404, path
