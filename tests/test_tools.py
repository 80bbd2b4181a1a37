"""The developers' tools: what a log of a sanitizer means."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent

ERROR = """=================================================================
==17==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x602
    #0 0x7f in zarrfeed::BoxCopy::copy_rows cpp/scatter.cc:150
"""
UNDEFINED = """cpp/shard_index.cc:20:5: runtime error: shift exponent 64 is too large for 64-bit type
    #0 0x7f in zarrfeed::load_word cpp/shard_index.cc:20
"""
FATAL = """==19==FATAL: AddressSanitizer: internal allocator is out of memory trying to allocate 0x8d bytes
"""
LEAKS = """=================================================================
==18==ERROR: LeakSanitizer: detected memory leaks

Direct leak of 64 byte(s) in 1 object(s) allocated from:
    #0 0x7f in malloc
    #1 0x7f in PyObject_Malloc

Direct leak of 8 byte(s) in 1 object(s) allocated from:
    #0 0x7f in operator new(unsigned long)
    #1 0x7f in zarrfeed::Engine::start cpp/engine.cc:99

Direct leak of 9 byte(s) in 1 object(s) allocated from:
    #0 0x7f in operator new(unsigned long)
    #1 0x7f in zarrfeed::pybind11_init__core
    #2 0x7f in PyInit__core

SUMMARY: AddressSanitizer: 81 byte(s) leaked in 3 allocation(s).
"""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_errors_count_and_leaks_only_if_the_engine_allocated_them() -> None:
    findings = load("sanitizer_report").findings
    assert findings("") == []
    (error,) = findings(ERROR)
    assert "BoxCopy::copy_rows" in error
    (error,) = findings(UNDEFINED)
    assert "shift exponent" in error
    (leak,) = findings(LEAKS)
    assert "Engine::start" in leak
    assert findings(FATAL) == [FATAL]
    assert len(findings(ERROR + LEAKS)) == 2
