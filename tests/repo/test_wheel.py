"""The compiled module is self-contained: it needs the C and C++ run-time libraries and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import zarrfeed._core

RUNTIME = {
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libpthread.so.0",
    "libdl.so.2",
    "ld-linux-x86-64.so.2",
}


@pytest.mark.skipif(sys.platform != "linux", reason="ELF is Linux's format")
def test_it_links_only_the_run_time_libraries() -> None:
    with Path(zarrfeed._core.__file__).open("rb") as file:
        (dynamic,) = [s for s in ELFFile(file).iter_sections() if isinstance(s, DynamicSection)]
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}  # type: ignore[attr-defined]
    assert needed
    assert needed <= RUNTIME


@pytest.mark.skipif(sys.platform != "linux", reason="ELF is Linux's format")
def test_it_exports_its_init_function_alone() -> None:
    """Another Blosc, LZ4 or Zstandard in the same process must neither replace ours nor be replaced by it."""
    with Path(zarrfeed._core.__file__).open("rb") as file:
        (table,) = [
            s for s in ELFFile(file).iter_sections() if isinstance(s, SymbolTableSection) and s.name == ".dynsym"
        ]
        exported = {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF" and s.name}
    assert exported == {"PyInit__core"}


def test_an_import_without_the_compiled_module_says_what_to_do() -> None:
    script = "import sys; sys.modules['zarrfeed._core'] = None; import zarrfeed"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 1
    assert "compiled engine cannot be imported" in result.stderr
    assert "pip install ." in result.stderr
