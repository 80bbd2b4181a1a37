"""Ctrl-C while Python cannot hand it on: what a `__del__` raises is printed and forgotten, an interrupt too.

`interrupt_after` is called with the interrupt in hand; the same interrupt then comes again as soon as the function that
called it has returned to whoever dropped the object. Python looks for signals between two bytecodes, so it must be C
that sets the flag, when the frame of that function is cleared: the callback of a weak reference to a local variable.
"""

from __future__ import annotations

import _thread
import signal
import weakref
from typing import Any

_references: list[_Interrupt] = []


class Token:
    """To be kept in a local variable, and nowhere else, by the function after which the interrupt is to come."""


class _Interrupt(weakref.ref[Token]):
    """Is passed to its own callback, `_thread.interrupt_main`, which takes the number of a signal."""

    def __index__(self) -> int:
        _references.clear()
        return int(signal.SIGINT)


def interrupt_after(token: Token) -> None:
    """Interrupt the main thread when the token is dropped."""
    callback: Any = _thread.interrupt_main  # it takes the reference for a number
    _references.append(_Interrupt(token, callback))
