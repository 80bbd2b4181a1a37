"""Tell the findings in a directory of sanitizer logs that concern the engine from the leaks of other libraries."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def findings(log: str) -> list[str]:
    """Return the reports of a log that are errors, or leaks that were allocated by the engine.

    Memory that Python or pybind11 allocates while the extension is imported is theirs until the process ends.
    """
    reports = re.split(r"(?m)^(?==+\d+=+(?:ERROR|FATAL|WARNING))|(?=^\S+: runtime error: )", log)
    errors = [part for part in reports if re.search(r"ERROR: (?!LeakSanitizer)|=FATAL: |: runtime error: ", part)]
    leaks = [part for part in log.split("\n\n") if re.match(r"\s*(Direct|Indirect) leak of", part)]
    return errors + [part for part in leaks if "zarrfeed::" in part and "PyInit_" not in part]


def main() -> int:
    """Print what was found, and return 1 if there was anything."""
    logs = sorted(Path(sys.argv[1]).iterdir())
    found = [finding for path in logs for finding in findings(path.read_text(errors="replace"))]
    for finding in found:
        print(finding)
    print(f"sanitizers: {len(logs)} logs, {len(found)} findings of ours")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
