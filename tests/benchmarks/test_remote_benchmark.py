"""benchmarks/suites/remote.py: every side delivers what the server has; nginx and the proxy end with their block."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest
import zarr

from benchmarks.data.long_store import long_path, long_store, times_for
from benchmarks.data.stores import Store, prepare_store
from benchmarks.harness import nginx
from benchmarks.harness.checksum import ChecksumError
from benchmarks.harness.measure import expected_hashes
from benchmarks.harness.nginx import Nginx, NoNginxError, count_requests, find_nginx, serve
from benchmarks.harness.slow_proxy import Slowness, slowed
from benchmarks.harness.steps import slowdown_beside
from benchmarks.harness.wrk import run_wrk
from benchmarks.suites import remote, remote_series
from benchmarks.suites.remote import Row, above_local, goal_of
from benchmarks.suites.remote_series import Turn
from benchmarks.suites.remote_series import share as series_share
from benchmarks.suites.remote_sides import REMOTE_LAYOUTS, SIDES, Source, remote_layout, verify_side, why_not
from tests.support.paths import ROOT
from tests.support.proc import children


def _has_nginx() -> bool:
    try:
        find_nginx()
    except NoNginxError:
        return False
    return True


needs_nginx = pytest.mark.skipif(not _has_nginx(), reason="nginx is not installed: apt install nginx-light")


def get(url: str) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=30) as response:
        data: bytes = response.read()
    return data


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def is_answering(url: str) -> bool:
    try:
        return bool(get(f"{url}/.token"))
    except OSError:
        return False


@pytest.fixture
def objects(tmp_path: Path) -> Store:
    """Return a small store whose chunks have 16 samples."""
    return prepare_store(remote_layout("objects", "small"), tmp_path / "data", scale="small")


@needs_nginx
def test_every_side_delivers_every_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert remote.main(["--scale", "small", "--checksum-only", "--data", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    sides = [side for side in SIDES if not why_not(side)]
    assert "zarrfeed-http" in sides
    for layout in REMOTE_LAYOUTS:
        for side in sides:
            what = "objects are right" if side.startswith("obstore") else "samples are right"
            what = "objects are answered, and not looked at" if side == "wrk" else what
            (line,) = (line for line in printed.splitlines() if line.startswith(f"{layout}, {side}: "))
            assert line.endswith(f" {what}"), line
    assert printed.count(": skipped, ") == len(SIDES) - len(sides)


@needs_nginx
@pytest.mark.parametrize("side", ["obstore-async", "obstore-threads", "zarrfeed-http", "zarrfeed-s3"])
def test_a_server_with_other_bytes_is_caught(side: str, objects: Store, tmp_path: Path) -> None:
    expected = expected_hashes(objects)
    served = tmp_path / "served" / objects.path.name
    shutil.copytree(objects.path, served)
    shutil.copyfile(objects.samples_path / "c/0/0/0/0", served / "samples/c/1/0/0/0")
    with serve(tmp_path / "served") as server:
        message = "1 of them wrong" if side.startswith("obstore") else "16 missing, 16 repeated"
        with pytest.raises(ChecksumError, match=message):
            verify_side(side, Source(objects, server.url), expected)


@needs_nginx
@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed: apt install wrk")
def test_wrk_asks_for_all_paths_and_tells_when_one_fails(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(100 * name.encode())
    with serve(tmp_path) as server:
        before = count_requests(server.url)
        load = run_wrk(server.url, ["/a", "/b"], 1)
        assert 0 < load.requests <= count_requests(server.url) - before
        assert load.received_bytes > 100 * load.requests
        assert 0.5 < load.wall_s < 30
        with pytest.raises(RuntimeError, match=r"of \d+ requests failed"):
            run_wrk(server.url, ["/a", "/none"], 1)


@needs_nginx
def test_nothing_is_timed_after_wrong_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = tmp_path / "served"

    @contextmanager
    def serve_other_bytes(directory: Path) -> Iterator[nginx.Nginx]:
        shutil.copytree(directory, served)
        (samples,) = served.glob("*.zarr/samples")
        shutil.copyfile(samples / "c/0/0/0/0", samples / "c/1/0/0/0")
        with serve(served) as server:
            yield server

    monkeypatch.setattr(remote, "serve", serve_other_bytes)
    options = ["--layouts", "objects", "--sides", "obstore-threads,zarrfeed-local,zarrfeed-http", "--scale", "small"]
    out = tmp_path / "out"
    assert remote.main([*options, "--data", str(tmp_path / "data"), "--out", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "objects, obstore-threads: WRONG: fetched 3 of 3 objects, 1 of them wrong" in printed
    assert "objects, zarrfeed-local: 37 samples are right" in printed
    assert "objects, zarrfeed-http: WRONG: " in printed
    assert "nothing was timed" in printed
    assert not out.exists()


def test_steps_are_measured_beside_work_that_ends_before_they_begin() -> None:
    assert slowdown_beside(lambda: None).keys() == {"step_percent", "step_on_a_core_percent"}
    with pytest.raises(ZeroDivisionError):
        slowdown_beside(lambda: 1 / 0)


@needs_nginx
def test_a_run_measures_each_side_in_each_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["obstore-threads", "zarrfeed-local", "zarrfeed-http"]
    options = ["--layouts", "shards", "--sides", ",".join(sides), "--scale", "small", "--repeats", "2"]
    data, out = tmp_path / "data", tmp_path / "out"
    assert remote.main([*options, "--seconds", "0.05", "--data", str(data), "--out", str(out)]) == 0
    written = json.loads((out / "remote.json").read_text())
    rows = {(row["side"], row["repeat"]): row for row in written["rows"]}
    assert list(rows) == [(side, repeat) for repeat in range(2) for side in sides]
    for (side, _), row in rows.items():
        assert row["objects"] == 3
        assert (row["gb_per_s"] is None) == (side == "obstore-threads")
        for figure in ("stored_gb_per_s", "cpu_s_per_stored_gb", "peak_mib", "longest_ms", "p99_9_ms"):
            assert row[figure] > 0, figure
        assert math.isfinite(row["step_percent"])
        assert math.isfinite(row["step_on_a_core_percent"])
        assert (row["wait_p99_ms"] is None) == (side == "obstore-threads")
        if side == "zarrfeed-local":
            assert row["requests_per_epoch"] == 0
        elif side == "obstore-threads":
            assert row["requests_per_epoch"] == 3
        else:
            assert row["requests_per_epoch"] > 3, "inner chunks, and the indices of the shards"
    assert "shards: timed" in capsys.readouterr().out


def test_without_nginx_the_run_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.harness.nginx.shutil.which", lambda *_, **__: None)
    assert remote.main(["--data", str(tmp_path / "data")]) == 2
    assert "nginx is not installed, and this benchmark reads from it: apt install nginx-light" in (
        capsys.readouterr().out
    )
    assert not (tmp_path / "data").exists()


def workers_of(server: Nginx) -> list[int]:
    """Return the two workers of a server; the first may answer before the second has begun."""
    while len(found := children(server.pid)) < 2:
        time.sleep(0.01)
    assert len(found) == 2
    return found


@needs_nginx
def test_nginx_ends_with_its_block_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    served = tmp_path / 'a "quoted" $directory'
    served.mkdir()
    (served / "file").write_bytes(b"bytes")

    class StopError(Exception):
        pass

    pids: list[int] = []
    urls: list[str] = []

    def read_and_stop() -> None:
        with serve(served) as server:
            assert get(f"{server.url}/file") == b"bytes"
            pids.extend((server.pid, *workers_of(server)))
            urls.append(server.url)
            raise StopError

    with pytest.raises(StopError):
        read_and_stop()
    assert not any(is_running(pid) for pid in pids)
    assert not is_answering(urls[0])
    assert list(temporary.iterdir()) == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from benchmarks.harness.nginx import serve
with serve(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_nginx
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_nginx_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    deadline = time.monotonic() + 30
    while is_answering(done.stdout.strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_answering(done.stdout.strip())


@needs_nginx
def test_an_nginx_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nginx, "_CONFIG", nginx._CONFIG.replace("sendfile on", "sendfile perhaps"))
    with pytest.raises(NoNginxError, match='invalid value "perhaps" in "sendfile" directive'), serve(tmp_path):
        pass


@needs_nginx
def test_requests_are_counted_by_the_server(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with serve(tmp_path) as server:
        before = count_requests(server.url)
        for _ in range(3):
            get(f"{server.url}/file")
        assert count_requests(server.url) - before == 3 + 1


@needs_nginx
def test_the_proxy_delays_requests_and_caps_the_rate(tmp_path: Path) -> None:
    data = np.random.default_rng(5).bytes(2_000_000)
    (tmp_path / "file").write_bytes(data)
    with serve(tmp_path) as server:
        with slowed(server.url, Slowness(latency_ms=100, cap_mb_s=10)) as proxy:
            begin = time.monotonic()
            assert get(f"{proxy.url}/file") == data
            # the connection, the request, and the bytes but for the last piece, of up to 256 KiB, and 5 ms ahead
            assert time.monotonic() - begin > 0.1 + 0.1 + 0.2 - 0.027 - 0.005
        assert proxy.pid is not None
        assert not is_running(proxy.pid)
        with slowed(server.url, Slowness()) as none:
            assert none == (server.url, None)


@needs_nginx
def test_the_proxy_slows_every_nth_request(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with serve(tmp_path) as server, slowed(server.url, Slowness(slow_share=0.25, slow_s=0.3)) as proxy:
        begin = time.monotonic()
        for _ in range(7):
            assert get(f"{proxy.url}/file") == b"bytes"
        first = time.monotonic() - begin
        assert get(f"{proxy.url}/file") == b"bytes"
        assert first >= 0.3
        assert time.monotonic() - begin - first >= 0.3, "the eighth request, like the fourth"


@needs_nginx
def test_the_proxy_passes_many_connections_at_once_and_a_server_that_is_gone(tmp_path: Path) -> None:
    data = np.random.default_rng(6).bytes(3_000_000)
    (tmp_path / "file").write_bytes(data)
    with ExitStack() as stack:
        server = stack.enter_context(serve(tmp_path))
        proxy = stack.enter_context(slowed(server.url, Slowness(latency_ms=1, cap_mb_s=400)))
        with ThreadPoolExecutor(24) as pool:
            assert all(pool.map(lambda _: get(f"{proxy.url}/file") == data, range(48)))
        for pid in (server.pid, *workers_of(server)):
            os.kill(pid, signal.SIGKILL)
        for _ in range(3):
            with pytest.raises((OSError, HTTPException)) as caught:
                get(f"{proxy.url}/file")
            assert "refused" not in str(caught.value), "the proxy is there"


@needs_nginx
def test_the_proxy_survives_clients_that_leave_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with serve(tmp_path) as server, slowed(server.url, Slowness(always=True)) as proxy:
        assert proxy.pid is not None
        os.kill(proxy.pid, signal.SIGPIPE)  # as the system does when bytes go to a connection that was closed
        assert get(f"{proxy.url}/file") == b"bytes"


def test_a_long_store_reads_as_copies_and_goes_with_its_block(objects: Store) -> None:
    layout = replace(objects.layout, shape=(32, *objects.layout.shape[1:]))
    assert times_for(objects.layout, 10 * objects.layout.decoded_bytes) == 1, "its last chunk is short"
    assert times_for(layout, 3 * layout.decoded_bytes - 1) == 3
    store = prepare_store(replace(layout, name="whole"), objects.path.parent, scale="small")
    values = np.asarray(zarr.open_array(store.samples_path, mode="r")[...])
    with long_store(store, 3) as long:
        assert long.path == long_path(store.path, 3)
        assert long.layout.num_samples == 96
        np.testing.assert_array_equal(zarr.open_array(long.samples_path, mode="r")[...], np.concatenate([values] * 3))
    assert not long.path.exists()
    assert store.path.exists()


@needs_nginx
def test_a_series_compares_with_the_undelayed_rate_and_with_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("100 ms", "200 MB/s", "1 GB/s"):
        monkeypatch.delitem(remote_series.CONDITIONS, name)
    options = ["--layouts", "objects", "--sides", "obstore-threads", "--scale", "small", "--repeats", "1", "--series"]
    data, out = tmp_path / "data", tmp_path / "out"
    assert remote.main([*options, "--seconds", "0.05", "--data", str(data), "--out", str(out)]) == 0
    turns = json.loads((out / "remote-series.json").read_text())["turns"]
    assert [(turn["side"], turn["condition"]) for turn in turns] == [
        ("obstore-threads", name) for name in ("undelayed", "20 ms")
    ]
    printed = capsys.readouterr().out
    assert "The proxy was busy for up to " in printed
    assert "objects: timed, 1 copies of it an epoch" in printed


def test_ratios_of_a_series_are_of_the_same_round() -> None:
    rates = {"undelayed": (1.0, 2.0, 4.0), "20 ms": (0.9, 1.9, 3.0), "200 MB/s": (0.1, 0.19, 0.2)}
    turns = [
        Turn("objects", "zarrfeed-http", condition, repeat, rate / 2, rate, 0.1)
        for condition, of_rounds in rates.items()
        for repeat, rate in enumerate(of_rounds)
    ]
    assert series_share(turns, "objects", "zarrfeed-http", "20 ms", "gb_per_s") == pytest.approx(0.9)
    assert series_share(turns, "objects", "zarrfeed-http", "200 MB/s", "gb_per_s") == pytest.approx(0.95)
    assert series_share(turns, "objects", "zarrfeed-http", "200 MB/s", "first_gb_per_s") == pytest.approx(0.475)
    assert series_share(turns, "objects", "zarrfeed-http", "1 GB/s", "gb_per_s") is None


def test_clients_find_no_credentials_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_ID", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "there")
    environment = remote.clean_environment()
    assert "there" not in environment.values()
    assert environment["AWS_EC2_METADATA_DISABLED"] == "true"
    assert environment["PATH"] == os.environ["PATH"]


def test_what_http_costs_is_compared_with_the_local_side_of_the_same_round() -> None:
    # the machine is twice as slow in round 1
    costs = {
        "obstore-async": (1.0, 2.0, 1.0),
        "obstore-threads": (0.5, 1.0, 0.5),
        "zarrfeed-local": (1.0, 2.0, 1.0),
        "zarrfeed-http": (1.5, 3.0, 1.9),
    }
    rows = [
        Row(layout, side, repeat, {"cpu_s_per_stored_gb": cost})
        for layout in ("objects", "small-objects")
        for side, of_rounds in costs.items()
        for repeat, cost in enumerate(of_rounds)
    ]
    assert above_local(rows, "objects", "zarrfeed-http") == pytest.approx(0.9)
    assert goal_of(rows, "objects") == pytest.approx(0.65)
    assert goal_of(rows, "small-objects") is None
    assert above_local(rows, "shards", "zarrfeed-http") is None
    assert goal_of(rows, "shards") is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--latency-ms", "-1"),
        ("--latency-ms", "nan"),
        ("--cap-mb-s", "0"),
        ("--sides", "wget"),
        ("--repeats", "0"),
        ("--slow-share", "1"),
        ("--slow-s", "-1"),
    ],
)
def test_bad_options_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        remote.main([option, value])
    assert ended.value.code == 2
    assert f"argument {option}" in capsys.readouterr().err


def test_a_series_has_no_latency_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        remote.main(["--series", "--latency-ms", "5"])
    assert "--series has its own latencies and caps" in capsys.readouterr().err
