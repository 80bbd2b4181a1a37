"""The process in which tries are made: `python -m tests.faults.harness.child ROW FUNCTION FIRST COUNT SHARED RESULTS`.

FUNCTION is the row's `attempt`, as module:name. A line of JSON is appended to the file RESULTS for each try. If there
comes none for the row's timeout, the parent takes it for a hang and kills the process.
"""

from __future__ import annotations

import faulthandler
import json
import pkgutil
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.faults.harness.row import Try, UnspecifiedError


def main(arguments: list[str]) -> None:
    """Make the tries FIRST to FIRST + COUNT."""
    faulthandler.enable()  # so that one that hangs can be asked where
    name, function, first, count, shared, results = arguments
    attempt = pkgutil.resolve_name(function)
    with Path(results).open("a") as out:
        for number in range(int(first), int(first) + int(count)):
            line = json.dumps({"number": number} | _make_try(attempt, name, number, Path(shared)))
            out.write(line + "\n")
            out.flush()


def _make_try(attempt: Callable[[Try], str], name: str, number: int, shared: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        try:
            return {"outcome": attempt(Try(number, random.Random(f"{name}/{number}"), Path(directory), shared))}
        except UnspecifiedError as error:
            return {"wrong": str(error)}
        except BaseException:  # noqa: BLE001 (whatever it is: the try did not end as specified)
            return {"wrong": traceback.format_exc()}


if __name__ == "__main__":
    main(sys.argv[1:])
