"""Processes that the benchmarks start are warm: what they measure is of no account in a test."""

from __future__ import annotations

import sys

import pytest

from tests.support import warm


@pytest.fixture(autouse=True)
def _warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(warm.executable()))
