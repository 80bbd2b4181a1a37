"""Files that were used last stay open, and none is closed while it is used."""

from __future__ import annotations

import pytest

from zarrfeed.packing.sources.open_files import OpenFiles


def test_the_ones_that_were_used_last_stay_open() -> None:
    told: list[str] = []

    def opener(number: int) -> int:
        told.append(f"open {number}")
        return number

    files = OpenFiles(opener, lambda number: told.append(f"close {number}"), most=2)
    for number in (0, 1, 0, 2, 0, 1):
        with files.use(number) as opened:
            assert opened == number
    assert told == ["open 0", "open 1", "open 2", "close 1", "open 1", "close 2"]
    del told[:]
    with files.use(0), files.use(1), files.use(2), files.use(3):
        assert told == ["open 2", "open 3"]  # none of them is closed
    with files.use(3):
        files.close()
        assert told[-1] != "close 3"
    files.close()
    assert told.count("close 2") == 1
    assert sum(one.startswith("close") for one in told) == 2 + sum(one.startswith("open") for one in told)


def test_a_file_that_could_not_be_opened_is_opened_again() -> None:
    told = []

    def opener(number: int) -> int:
        told.append(number)
        if len(told) == 1:
            raise OSError("not now")
        return number

    files = OpenFiles(opener, lambda _: None)
    with pytest.raises(OSError, match="not now"), files.use(4):
        pass
    with files.use(4) as opened:
        assert opened == 4
