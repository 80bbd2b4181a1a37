"""The bar of commands: shown on a terminal, and silent everywhere else."""

from __future__ import annotations

import io
import sys

import pytest

from zarrfeed.tools.progress_bar import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shows"), [(Terminal, True), (io.StringIO, False)])
def test_a_bar_is_shown_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], shows: bool
) -> None:
    pytest.importorskip("rich")
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with show_progress("samples") as show:
        show(3, 8, "write")
    assert ("3/8" in written.getvalue()) == shows
    assert ("samples" in written.getvalue()) == shows
    assert ("write" in written.getvalue()) == shows


def test_nothing_is_shown_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Terminal()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with show_progress() as show:
        show(1, 2, "")
    assert not written.getvalue()
