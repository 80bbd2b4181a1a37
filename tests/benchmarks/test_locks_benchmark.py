"""benchmarks/suites/locks.py: what the meter counts, and what follows from it for more cores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks.harness.compile import NoCompilerError, compiled
from benchmarks.suites import locks
from benchmarks.suites.locks import Locks, Mutex
from tests.support.scripts import run_new_script

METER = Path(locks.__file__).parents[1] / "harness" / "lock_meter.c"

#: A C library in which two mutexes are locked: one 30 times, the other 10 times with a wait on a condition.
LIBRARY = """
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
void work(void) {
  for (int i = 0; i < 30; ++i) { pthread_mutex_lock(&a); pthread_mutex_unlock(&a); }
  for (int i = 0; i < 10; ++i) {
    struct timespec until = {0};
    pthread_mutex_lock(&b);
    pthread_cond_timedwait(&never, &b, &until);
    pthread_mutex_unlock(&b);
  }
}
"""

COUNT = """
    import ctypes, json, sys, zarrfeed
    from benchmarks.suites.locks_probe import Mutex, code_of
    meter, library = ctypes.CDLL(None), ctypes.CDLL(sys.argv[1])
    meter.lock_meter_start.argtypes = [ctypes.c_uint64] * 2
    library.work()
    meter.lock_meter_start(*code_of(sys.argv[1]))
    library.work()
    meter.lock_meter_stop()
    library.work()
    found, row = [], Mutex()
    while meter.lock_meter_read(len(found), ctypes.byref(row)):
        found.append([row.locks, row.contended, row.long_holds > row.locks])
    print(json.dumps(sorted(found)))
"""


@pytest.fixture
def meter() -> Path:
    try:
        return compiled(METER, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    except NoCompilerError as error:
        pytest.skip(str(error))


def test_the_meter_counts_the_holds_of_one_library(
    meter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "locks.c"
    source.write_text(LIBRARY)
    library = compiled(source, "-shared", "-fPIC")
    monkeypatch.setenv("LD_PRELOAD", str(meter))
    done = run_new_script(COUNT, str(library))
    assert json.loads(done.stdout) == [[20, 0, False], [30, 0, False]], done.stderr


def test_a_run_tells_a_layout(meter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert meter.exists()
    options = ["--layouts", "D", "--scale", "small", "--epochs", "1", "--data", str(tmp_path), "--out", str(tmp_path)]
    assert locks.main(options) == 0
    layouts = json.loads((tmp_path / "locks.json").read_text())["layouts"]
    assert [one["layout"] for one in layouts] == ["D"]
    for one in layouts:
        assert sum(mutex["holds"] for mutex in one["mutexes"]) > 0
    assert "cores at most" in capsys.readouterr().out


def test_long_holds_and_the_meter_itself_count_nothing() -> None:
    mutex = {"locks": 100, "contended": 7, "held_ns": 9000, "long_holds": 10, "long_ns": 10**9}
    measured = {"chunks": 10, "cpu_s": 0.01, "wall_ns": 1, "cost_ns": 40, "mutexes": [mutex]}
    (found,) = Locks.of("A", measured).mutexes
    # 90 short holds of 100 ns, of which the meter takes 40
    assert found.held_s == pytest.approx(100 * 60e-9 / 10)
    assert (found.holds, found.contended) == (10, 0.7)


def test_more_cores_wait_more_until_one_mutex_is_always_busy() -> None:
    of = Locks("A", 100e-6, (Mutex(1, 10e-6, 0), Mutex(4, 1e-6, 0)))
    assert of.most_cores() == pytest.approx(10)
    assert of.efficiency(1) > of.efficiency(2) > of.efficiency(8) > of.efficiency(16)
    assert of.efficiency(20) == pytest.approx(0.5)
    # one core in two keeps the first mutex busy for a fifth: 0.2 * 10 us / (2 * 0.8), and the second for a fiftieth
    assert of.efficiency(2) == pytest.approx(100 / (100 + 1.25 + 0.02 / 0.98 / 2))
    free = Locks("A", 1e-6, ())
    assert (free.most_cores(), free.efficiency(64)) == (math.inf, 1.0)
