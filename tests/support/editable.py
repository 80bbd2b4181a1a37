"""An editable install that rebuilds on import: in the tests, and in processes that they start, it prints nothing."""

from __future__ import annotations

from collections.abc import MutableMapping

#: scikit-build-core says what it builds, on the stdout of whoever imports the package, unless this is "0".
_VERBOSE = "SKBUILD_EDITABLE_VERBOSE"


def rebuild_quietly(environment: MutableMapping[str, str]) -> None:
    """Have imports below an environment rebuild without a word, so that what a script prints is its own."""
    environment[_VERBOSE] = "0"
