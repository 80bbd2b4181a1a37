"""A headless Chromium, driven by ChromeDriver over HTTP (the W3C WebDriver protocol), without a library."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SWITCHES = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
    *("disable-component-update", "disable-sync", "disable-extensions", "disable-dev-shm-usage", "hide-scrollbars"),
    "host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # so that a page that asks any server fails
)
_TIMEOUT_S = 60


def what_lacks() -> str | None:
    """Return why no browser can be started here, or None."""
    programs = ("chromedriver",), ("chromium", "chromium-browser", "google-chrome")
    missing = [names[0] for names in programs if not any(map(shutil.which, names))]
    return f"needs {' and '.join(missing)}: apt install chromium chromium-driver" if missing else None


class Browser:
    """One window of the browser; every call waits for its end."""

    def __init__(self, server: str, folder: Path) -> None:
        self._server = server
        switches = [f"--{one}" for one in (*_SWITCHES, f"user-data-dir={folder}")]
        wanted = {
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": switches},
        }
        self._session = f"/session/{self._call('/session', capabilities={'alwaysMatch': wanted})['sessionId']}"

    def _call(self, path: str, method: str = "POST", **body: Any) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(self._server + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        """Open a file, and wait until all of it is loaded."""
        self._call(f"{self._session}/url", url=page.resolve().as_uri())

    def resize(self, width: int) -> None:
        """Let the page be as many pixels wide, and 1000 high."""
        self._call(f"{self._session}/window/rect", width=width, height=1000)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of an asynchronous function in the page, and return what it returns."""
        body = f"const done = arguments[arguments.length - 1]; (async function () {{ {script} }})"
        body += ".apply(null, arguments).then(done, (error) => done('error: ' + error));"
        return self._call(f"{self._session}/execute/async", script=body, args=arguments)

    def take_picture(self, path: Path) -> None:
        """Write a PNG of the window."""
        path.write_bytes(base64.b64decode(self._call(f"{self._session}/screenshot", "GET")))

    def messages(self) -> list[str]:
        """Return what the console said since the last call, errors of loading among it."""
        return [one["message"] for one in self._call(f"{self._session}/se/log", type="browser")]

    def close(self) -> None:
        """End the browser."""
        self._call(self._session, "DELETE")


@contextmanager
def start_browser(folder: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile in `folder`, and end all of its processes afterwards."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert driver.stdout is not None
        found = (re.search(r"started successfully on port (\d+)", line) for line in driver.stdout)
        port = next(match[1] for match in found if match)
        browser = Browser(f"http://127.0.0.1:{port}", folder)
        yield browser
        browser.close()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
