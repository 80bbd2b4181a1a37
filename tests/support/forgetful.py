"""`ForgetfulDisk`: what is done below a folder, and what a power failure at a moment leaves of it.

The disk is as forgetful as POSIX allows. A file's content is safe once `fsync` of it returned; until then a failure
leaves the content that was synced before, nothing, a part, zeros, or all of it. A name that was made, moved or deleted
is safe once `fsync` of its folder returned; until then each such change is lost or not, by itself. Changes of one name
keep their order, and a move is one change. That a process is killed, and nothing is lost, is one of the cases.
"""

from __future__ import annotations

import builtins
import io
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

#: Path below the root -> content of a file; None of a folder.
Tree = dict[str, bytes | None]
#: A name in a folder, both by number, and the file or folder that has it then.
_Change = tuple[int, str, int | None]

_ROOT = 0
#: Chance of an image right after something was deleted, which is when most is lost.
_AFTER_DELETING = 0.5


@dataclass(frozen=True)
class Image:
    """The files that a failure left, and the promises that had been made until then."""

    tree: Tree
    promise: Any
    event: str

    def restore(self, folder: Path) -> None:
        """Write it to a folder, which is made."""
        folder.mkdir(parents=True)
        for name, content in self.tree.items():
            if content is None:
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(content)


class ForgetfulDisk:
    """Follows what this process does below a folder while `watched`, and takes images at random moments.

    Parameters
    ----------
    root
        A folder that is empty.
    seed
        Of all choices.
    chance
        That an image is taken before an operation.
    """

    def __init__(self, root: Path, seed: int, chance: float) -> None:
        self.images: list[Image] = []
        #: Set by whoever uses the disk: what it may rely on from now on.
        self.promise: Any = None
        self.syncs = 0
        self._root, self._chance = str(root), chance
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._has_deleted = False  # right now
        self._numbers = {self._root: _ROOT}  # path -> number, as the process sees it
        self._folders = {_ROOT}
        self._last = _ROOT
        self._on_disk: dict[int, dict[str, int]] = {_ROOT: {}}
        self._pending: list[list[_Change]] = []
        self._synced: dict[int, bytes] = {}
        self._unlinked: dict[int, bytes] = {}

    def adopt(self, path: Path) -> None:
        """Know of a file or folder that is there and on the disk; of its folder first."""
        folder, name = self._split(str(path))
        self._on_disk[folder][name] = self._new(str(path))
        if path.is_dir():
            self._folders.add(self._last)
            self._on_disk[self._last] = {}
        else:
            self._synced[self._last] = path.read_bytes()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Follow what is done meanwhile."""
        names = ("open", "fsync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link")
        real = {name: getattr(os, name) for name in names}
        opener = io.open
        watched = self._opener(opener)
        with ExitStack() as patches:
            for name in names:
                patches.enter_context(mock.patch.object(os, name, self._wrapped(name, real[name])))
            for module in (io, builtins):
                patches.enter_context(mock.patch.object(module, "open", watched))
            yield

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return getattr(self, f"_{name}")(real, *args, **kwargs)

        return call

    def _opener(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wxa+"):
                return real(file, mode, *args, **kwargs)
            with self._lock:
                return self._making(file, None, lambda: real(file, mode, *args, **kwargs))

        return call

    # The patched calls

    def _path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return a path, if it is below the root."""
        text = os.fsdecode(path)
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)  # noqa: PTH115, PTH118
        text = os.path.abspath(text)  # noqa: PTH100
        return text if text.startswith(f"{self._root}/") else None

    def _split(self, path: str) -> tuple[int, str]:
        folder, name = os.path.split(path)
        return self._numbers[folder], name

    def _new(self, path: str) -> int:
        self._last += 1
        self._numbers[path] = self._last
        return self._last

    def _making(self, path: Any, dir_fd: int | None, real: Callable[[], Any]) -> Any:
        text = self._path(path, dir_fd)
        if text is None or text in self._numbers:
            return real()
        self._maybe_fail(f"make {text}")
        made = real()
        self._pending.append([(*self._split(text), self._new(text))])
        return made

    def _open(self, real: Any, path: Any, flags: int, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> Any:
        if dir_fd is not None:
            kwargs["dir_fd"] = dir_fd
        if not flags & os.O_CREAT:
            return real(path, flags, *args, **kwargs)
        return self._making(path, dir_fd, lambda: real(path, flags, *args, **kwargs))

    def _mkdir(self, real: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        text = self._path(path)
        if text is None or text in self._numbers:
            real(path, *args, **kwargs)
            return
        self._making(path, None, lambda: real(path, *args, **kwargs))
        self._folders.add(self._last)
        self._on_disk[self._last] = {}

    def _link(self, real: Any, source: Any, target: Any, **kwargs: Any) -> None:
        text = self._path(target)
        assert text is not None
        self._maybe_fail(f"link {text}")
        real(source, target, **kwargs)
        self._numbers[text] = self._numbers[str(self._path(source))]
        self._pending.append([(*self._split(text), self._numbers[text])])

    def _unlink(self, real: Any, path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
        text = self._path(path, dir_fd)
        if dir_fd is not None:
            kwargs["dir_fd"] = dir_fd
        if text is None or text not in self._numbers:
            real(path, *args, **kwargs)
            return
        self._maybe_fail(f"unlink {text}")
        self._keep(text)
        real(path, *args, **kwargs)
        self._pending.append([(*self._split(text), None)])
        del self._numbers[text]

    _remove = _rmdir = _unlink

    def _rename(self, real: Any, source: Any, target: Any, **kwargs: Any) -> None:
        old, new = self._path(source), self._path(target)
        if old is None and new is None:
            real(source, target, **kwargs)
            return
        assert old is not None
        assert new is not None
        self._maybe_fail(f"rename {old} to {new}")
        if new in self._numbers:
            self._keep(new)
        real(source, target, **kwargs)
        self._pending.append([(*self._split(old), None), (*self._split(new), self._numbers[old])])
        for path in [path for path in self._numbers if path == old or path.startswith(f"{old}/")]:
            self._numbers[new + path[len(old) :]] = self._numbers.pop(path)

    _replace = _rename

    def _fsync(self, real: Any, descriptor: Any) -> None:  # noqa: ARG002
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        path = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        if path not in self._numbers:
            return
        self._maybe_fail(f"sync {path}")
        self.syncs += 1
        one = self._numbers[path]
        if one not in self._folders:
            self._synced[one] = _content(path)
            return
        names: set[tuple[int, str]] = set()
        synced: list[list[_Change]] = []
        for change in reversed(self._pending):  # with all earlier changes of the same names
            of_change = {(folder, name) for folder, name, _ in change}
            if of_change & names or any(folder == one for folder, _ in of_change):
                names |= of_change
                synced.insert(0, change)
        for change in synced:
            _apply(self._on_disk, change)
        self._pending = [change for change in self._pending if change not in synced]

    def _keep(self, path: str) -> None:
        """Keep the content of a file that loses its name: a failure may bring the name back."""
        if os.path.isfile(path):  # noqa: PTH113
            self._unlinked[self._numbers[path]] = _content(path)

    # The files after a failure

    def _maybe_fail(self, event: str) -> None:
        chance = max(self._chance, _AFTER_DELETING) if self._has_deleted else self._chance
        self._has_deleted = event.startswith("unlink")
        if self._random.random() < chance:
            self.images.append(Image(self._left(), self.promise, event.replace(f"{self._root}/", "")))

    def end(self) -> None:
        """Take one image more, of the end."""
        self.images.append(Image(self._left(), self.promise, "end"))

    def _left(self) -> Tree:
        mode = self._random.choice(["nothing", "all", "first", "some", "some"])
        names = {folder: dict(entries) for folder, entries in self._on_disk.items()}
        if mode == "all":
            applied = self._pending
        elif mode == "nothing":
            applied = []
        elif mode == "first":
            applied = self._pending[: self._random.randrange(len(self._pending) + 1)]
        else:
            applied, lost = list[list[_Change]](), set[tuple[int, str]]()
            for change in self._pending:
                of_change = {(folder, name) for folder, name, _ in change}
                if of_change & lost or self._random.random() < 0.5:
                    lost |= of_change
                else:
                    applied.append(change)
        for change in applied:
            _apply(names, change)
        paths = {number: path for path, number in self._numbers.items()}
        tree: Tree = {}
        self._walk(names, _ROOT, "", paths, tree, mode)
        return tree

    def _walk(
        self, names: dict[int, dict[str, int]], folder: int, prefix: str, paths: dict[int, str], tree: Tree, mode: str
    ) -> None:
        for name, number in sorted(names[folder].items()):
            if number in self._folders:
                tree[prefix + name] = None
                self._walk(names, number, f"{prefix}{name}/", paths, tree, mode)
                continue
            now = _content(paths[number]) if number in paths else self._unlinked[number]
            synced = self._synced.get(number)
            if mode == "all" or now == synced:
                tree[prefix + name] = now
            elif mode == "nothing":
                tree[prefix + name] = synced or b""
            else:
                cut = now[: self._random.randrange(len(now) + 1)]
                tree[prefix + name] = self._random.choice([now, synced or b"", cut, bytes(len(now))])


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def _apply(names: dict[int, dict[str, int]], change: list[_Change]) -> None:
    for folder, name, number in change:
        if number is None:
            names[folder].pop(name, None)
        else:
            names[folder][name] = number
