"""`ReferenceTargets`: the files that references name, found as fsspec finds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.storage.files.data_file import DataFile, FarFile

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://|file:(?=/)")
_TEMPLATE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class ReferenceTargets:
    """The files that the chunks of one array lie in, each with a number.

    Parameters
    ----------
    name
        The name of the array in messages.
    folder
        The folder of the references. A relative path is one from the current folder, as fsspec has it, or else from
        this one. Text is the URL of a folder: relative paths count from it, and there are no local files.
    templates
        Text for `{{name}}` in a URL, by the name.
    """

    def __init__(self, name: str, folder: Path | str | None = None, templates: Mapping[str, str] | None = None) -> None:
        self.files: list[DataFile | FarFile] = []
        self._name, self._folder, self._templates = name, folder, templates or {}
        self._numbers: dict[str, int] = {}

    def number_of(self, url: object) -> int:
        """Return the number of the file at a URL, or at a path.

        Raises
        ------
        ConfigError
            If the URL is no text, or has a template that is not given; or names a local file, in references at a URL.
        StoreReadError
            If there is no such local file.
        """
        if not isinstance(url, str) or not url:
            raise ConfigError(f"{self._name}: refers to {printable(str(url))!r}, must be the path or the URL of a file")
        found = self._numbers.get(url)
        if found is None:
            found = self._numbers[url] = len(self.files)
            self.files.append(self._find(self._filled(url)))
        return found

    def _filled(self, url: str) -> str:
        def text_of(match: re.Match[str]) -> str:
            text = self._templates.get(match[1])
            return match[0] if text is None else text

        filled = _TEMPLATE.sub(text_of, url)
        if "{{" in filled:
            raise ConfigError(
                f"{self._name}: refers to {printable(url)!r}: only templates that are plain text by their names are "
                "read; write the references without templates"
            )
        return filled

    def _find(self, url: str) -> DataFile | FarFile:
        scheme = _SCHEME.match(url)
        if scheme is not None and scheme[0] not in ("file://", "local://", "file:"):
            return FarFile(url)
        if isinstance(self._folder, str):
            if scheme is not None or url.startswith("/"):
                what = "which is local to the machine that wrote the references; must be a URL, or a path beside them"
                raise ConfigError(f"{self._name}: refers to {printable(url)!r}, {what}")
            return FarFile(f"{self._folder}/{quote(url)}")
        if scheme is None:
            return self._local(Path(url))
        path = Path(url[scheme.end() :])
        return self._local(path if path.exists() else Path(unquote(str(path))))  # fsspec's, or a URL by RFC 8089

    def _local(self, path: Path) -> DataFile:
        beside = self._folder / path if isinstance(self._folder, Path) else None
        if beside is not None and not path.is_absolute() and not path.exists() and beside.exists():
            path = beside
        return DataFile.of_reference(path.absolute(), self._name)
