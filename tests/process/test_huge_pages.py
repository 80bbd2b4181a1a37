"""`tests.support.huge_pages`: what a process has allocated moves to huge pages and stays what it was."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import warm
from tests.support.paths import ROOT

CODE = """
import mmap, time
from tests.support.huge_pages import use_huge_pages

def huge_bytes(of):
    with open("/proc/self/smaps") as file:
        lines = iter(file)
        for line in lines:
            begin, dash, end = line.split()[0].partition("-")
            if dash and int(begin, 16) <= of < int(end, 16):
                return next(int(entry.split()[1]) << 10 for entry in lines if entry.startswith("AnonHugePages"))

size = 32 << 20
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = bytes(range(256)) * (size // 256)
import ctypes
address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + size // 2
before = huge_bytes(address)
for _ in range(5):  # the kernel finds pages later that it does not find now
    use_huge_pages()
    after = huge_bytes(address)
    if after > size // 2:
        break
    time.sleep(0.2)
assert memory[:] == bytes(range(256)) * (size // 256), "the memory has changed"
madvise = ctypes.CDLL(None).madvise
huge, first = 2 << 20, -(-(address - size // 2) // (2 << 20)) * (2 << 20)
can = sum(madvise(ctypes.c_void_p(first + i * huge), ctypes.c_size_t(huge), 25) == 0 for i in range(size // huge - 1))
print(before / size, after / size, can * huge / size)
"""


def test_memory_moves_to_huge_pages_and_keeps_its_values() -> None:
    command = [*warm.command(), "-c", CODE]
    out = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT, check=True).stdout
    before, after, possible = map(float, out.split())
    if before > 0.5:
        pytest.skip("this kernel makes huge pages by itself")
    if after <= 0.5 and possible <= 0.5:
        pytest.skip("this kernel collapses no pages: it is older than Linux 6.1, or memory is in small pieces")
    assert after > before, out  # how many pages a busy kernel finds is its own affair
