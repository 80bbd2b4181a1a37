"""Remote: a store on a web server, here one on this machine; what is read once lies in a cache on the disk.

python examples/remote_store.py
"""

from __future__ import annotations

import functools
import http.server
import tempfile
import threading
from pathlib import Path

import numpy as np
import zarr

import zarrfeed as zf


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and counts the requests for chunks."""

    requests = 0

    def do_GET(self) -> None:
        Quiet.requests += "/c/" in self.path
        super().do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Read two epochs over HTTP, and say how often the server was asked for chunks."""
    with tempfile.TemporaryDirectory() as folder:
        array = zarr.create_array(Path(folder) / "x.zarr", shape=(640, 50), chunks=(32, 50), dtype="f4")
        array[:] = np.arange(640, dtype="f4")[:, None]
        handler = functools.partial(Quiet, directory=folder)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever).start()
            data = zf.open(
                f"http://127.0.0.1:{server.server_port}/x.zarr",
                cache=Path(folder) / "cache",
                cache_version="1",  # this server's files are seconds old, so their times do not tell versions apart
                storage_options={"client_options": {"allow_http": True}},
            )
            dataset = zf.ZarrIterableDataset(data, batch_size=64, shuffle=True, seed=0)
            for epoch in range(2):
                total = sum(float(batch[:, 0].sum()) for batch in dataset)
                print(f"epoch {epoch}: sum {total:.0f}, {Quiet.requests} requests for chunks so far")
            server.shutdown()


if __name__ == "__main__":
    main()
