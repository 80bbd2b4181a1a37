"""The parser of the command line: argparse's, with the option or command that was probably meant in its errors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from zarrfeed.base.redaction import without_secrets
from zarrfeed.base.suggestions import did_you_mean

#: What `--executor` takes.
EXECUTORS = "dask://HOST:PORT, ray or ray://HOST:PORT"


class SuggestingParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors name similar options and choices; parsers of subcommands are of this class."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; an unknown option of this parser is an error here, where its options are known."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = [text for text in rest if text.startswith("-") and text != "--"]
        if unknown:
            self._refuse(unknown)
        return found, rest

    def error(self, message: str) -> NoReturn:
        """End the process with the usage and a message, which may quote what was given: without its secrets."""
        super().error(without_secrets(message))

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        known = [name for action in self._actions for name in action.option_strings]
        advice = did_you_mean(unknown[0].partition("=")[0], known)
        self.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message = str(error.message) + did_you_mean(value, action.choices or ())
            raise
