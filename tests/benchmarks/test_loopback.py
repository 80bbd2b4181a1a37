"""The web server of tests and benchmarks: it says what a handler raised, and nothing where a client left."""

from __future__ import annotations

import http.server

import pytest

from benchmarks.harness.loopback import LoopbackServer


@pytest.mark.parametrize("left", [BrokenPipeError, ConnectionResetError, ConnectionAbortedError])
def test_a_client_that_left_is_no_line_in_the_output_of_another_test(
    left: type[OSError], capsys: pytest.CaptureFixture[str]
) -> None:
    with LoopbackServer(http.server.SimpleHTTPRequestHandler) as server:
        for error in (left, ValueError):
            try:
                raise error
            except (OSError, ValueError):
                server.handle_error(None, ("127.0.0.1", 1))
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1
    assert "\nValueError\n" in said
