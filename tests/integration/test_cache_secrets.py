"""No credentials are in a node cache, or in anything that is said about it."""

from __future__ import annotations

import json
import shutil
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import numcodecs as zarr_numcodecs
from zarr.storage import ObjectStore

import zarrfeed
from tests.support.counting_server import CountingServer
from tests.support.oracle import NUMCODECS_WARNING
from tests.support.real_servers import NotHereError, isolate, serving_s3
from zarrfeed.base.errors import printable
from zarrfeed.tools import cli

obstore = pytest.importorskip("obstore")

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings(NUMCODECS_WARNING)]

N, ROWS = 48, 4


def _files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_no_credentials_are_in_the_cache_or_in_any_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that is written or said about an S3 store is searched for its key, its secret and its token."""
    isolate(monkeypatch)
    files, cache = tmp_path / "files", tmp_path / "cache"
    rows = np.arange(N * 4).reshape(N, 4)
    zarr.create_array(files / "a.zarr", data=rows, chunks=(ROWS, 4))
    zarr.create_array(files / "b.zarr", data=rows, chunks=(ROWS, 4), compressors=[zarr_numcodecs.BZ2(level=1)])
    said: list[str] = []
    options: dict[str, Any] = {"cache": cache, "cache_limit": "1MiB"}
    token, password, signature = "a-session-token-of-nobody", "a-password-of-nobody", "a-signature-of-nobody"
    try:
        with serving_s3(files) as server, CountingServer(files) as web:
            secret = [server.options["access_key_id"], *server.secrets, token, password, signature]
            behind_user = obstore.store.HTTPStore.from_url(
                f"{web.url.replace('//', f'//somebody:{password}@')}/a.zarr", client_options={"allow_http": True}
            )
            sources: list[tuple[Any, dict[str, Any]]] = [
                (f"{server.url}/a.zarr", {"storage_options": server.options}),
                (f"{server.url}/b.zarr", {"storage_options": server.options}),
                (zarr.open_array(ObjectStore(behind_user, read_only=True), mode="r"), {}),
            ]
            for source, more in sources:
                data = zarrfeed.open(source, **options, **more)
                with zarrfeed.ZarrIterableDataset(data, batch_size=8, num_threads=1) as dataset:
                    assert sum(len(batch) for batch in dataset) == N
                    stats = dataset.stats()
                    assert stats.cache.hits + stats.cache.misses > 0
                    explained = dataset.explain()
                    said += [repr(data), repr(dataset), str(stats), repr(stats), str(explained), repr(explained.cache)]
                    said += [json.dumps(dataset.state_dict()), explained._repr_html_()]
            gone = zarrfeed.ZarrIterableDataset(sources[-1][0], faults={"retries": 0})
            # errors: refused credentials, an object that is gone, a URL with a user or a signature
            wrong = {**server.options, "secret_access_key": secret[2], "session_token": token}
            for url, given in (
                (f"{server.url}/a.zarr", wrong),
                (server.nowhere + "/a.zarr", server.options),
                (f"s3://somebody:{password}@data/a.zarr", server.options),
                (f"{server.url}/a.zarr?X-Amz-Signature={signature}", server.options),
            ):
                with pytest.raises(zarrfeed.ZarrfeedError) as caught:
                    zarrfeed.open(url, storage_options=given, **options)
                said += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
            passed = [f"--storage-option={json.dumps(server.options)}"]
            for status, command in (
                (0, ["warm", f"{server.url}/a.zarr", "--cache", str(cache), *passed]),
                (2, ["warm", f"{server.url}/a.zarr?X-Amz-Signature={signature}", "--cache", str(cache), *passed]),
                (0, ["info", str(cache)]),
                (0, ["verify", str(cache)]),
                (0, ["clear", str(cache), "--store", f"{server.url}/b.zarr", *passed]),
                (2, ["clear", str(cache), "--store", f"https://somebody:{password}@host/x?sig={signature}"]),
            ):
                assert cli.main(["cache", *command]) == status
                said += capsys.readouterr()
    except NotHereError as error:
        pytest.skip(str(error))
    # an error of a server whose URL has a user; its cause is the client's own exception
    shutil.rmtree(files)
    with gone, pytest.raises(zarrfeed.StoreReadError) as unread:
        list(gone)
    said += [str(unread.value), repr(unread.value)]
    assert len(_files_below(cache)) > N // ROWS
    for path in _files_below(cache):
        stored = path.read_bytes() + str(path).encode()
        assert not [word for word in secret if word.encode() in stored], path
    assert any("s3://data" in text for text in said)
    for text in said:
        assert not [word for word in secret if word in text], text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('HTTPStore("http://u:p@host:1/a?sig=1&x=2")', 'HTTPStore("http://host:1/a")'),
        ("https://host/a?token=b#c is gone", "https://host/a is gone"),
        ("see https://host/a (https://u@h/x?y) there", "see https://host/a (https://h/x) there"),
        ("s3://bucket/what?", "s3://bucket/what?"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("file:///tmp/a?b@c", "file:///tmp/a?b@c"),
        ("is http://host/x right? ask me@host", "is http://host/x right? ask me@host"),
    ],
)
def test_urls_of_web_servers_are_shown_without_user_and_query(text: str, shown: str) -> None:
    assert printable(text) == shown
