"""`tests.support.huge_pages`: what a process has allocated moves to huge pages and stays what it was."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import warm
from tests.support.paths import ROOT

CODE = """
import mmap
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
use_huge_pages()
assert memory[:] == bytes(range(256)) * (size // 256), "the memory has changed"
can = ctypes.CDLL(None).madvise(ctypes.c_void_p(address & -(2 << 20)), ctypes.c_size_t(2 << 20), 25) == 0
print(can, before < size // 2 < huge_bytes(address))
"""


def test_memory_moves_to_huge_pages_and_keeps_its_values() -> None:
    command = [*warm.command(), "-c", CODE]
    out = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT, check=True).stdout
    if out.startswith("False"):
        pytest.skip("this kernel collapses no pages: it is older than Linux 6.1, or out of memory")
    assert out == "True True\n"
