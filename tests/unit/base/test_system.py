"""Names of processes: another process never has the name of one that ended."""

from __future__ import annotations

import os

from zarrfeed.base.system import process_name


def test_a_process_has_one_name_for_all_who_ask_and_another_one_after_its_end() -> None:
    own = process_name(os.getpid())
    assert own == process_name(os.getpid())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, f"{process_name(os.getppid())} {process_name(os.getpid())}".encode())
        os._exit(0)
    parent_of_child, name_of_child = os.read(read, 100).decode().split()
    assert parent_of_child == own
    assert name_of_child not in {own, process_name(child + 1)}
    os.waitpid(child, 0)
    assert process_name(child) != name_of_child, "the pid is free for another process"
    os.close(read)
    os.close(write)
