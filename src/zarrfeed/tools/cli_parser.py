"""The parser of the command line: argparse's, with the option or command that was probably meant in its errors."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from zarrfeed.base.redaction import without_secrets
from zarrfeed.base.suggestions import did_you_mean

if TYPE_CHECKING:
    from zarrfeed.metadata.face.data import Data

#: The forms of the argument of `--executor`.
EXECUTORS = "dask://HOST:PORT, ray or ray://HOST:PORT"

#: The text that `zarrfeed` without arguments shows below the usage.
EXAMPLES = """\
Examples:

  zarrfeed info train.zarr --batch-size 64 --shuffle   show the arrays of a store, and how training would read them
  zarrfeed verify train.zarr                           read every chunk, and report the bad and missing ones
  zarrfeed pack scans/*.h5 -o train.zarr --verify      write files as a store that trains fast, and check it

zarrfeed --help lists all commands, and zarrfeed info --help the options of one.
"""


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
        """End the process with the usage and a message, which may quote arguments, without their secrets."""
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


def add_sample_dim(parser: argparse.ArgumentParser, description: str) -> None:
    """Add `--sample-dim`, which names the dimension of samples, or several."""
    parser.add_argument(
        "--sample-dim", type=_parse_dims, metavar="NAME,...", help=f"{description}; or several, such as member,time"
    )


def _parse_dims(text: str) -> str | tuple[str, ...]:
    names = tuple(text.split(","))
    return text if len(names) == 1 else names


def add_sel(parser: argparse.ArgumentParser) -> None:
    """Add `--sel`, which chooses samples and items by their labels."""
    parser.add_argument(
        "--sel",
        action="append",
        type=parse_sel,
        metavar="DIM=LABELS",
        help="choose by labels as Data.sel does, such as level=500,850 or time=1990..2015 or latitude=60..30; "
        "level=500 takes the dimension away, and level=500, does not; may be repeated",
    )


def parse_sel(text: str) -> tuple[str, Any]:
    """Return the dimension and the labels of `DIM=LABELS`, as text.

    >>> parse_sel("level=500,850"), parse_sel("time=1990..2015"), parse_sel("latitude=60.5..")
    (('level', ['500', '850']), ('time', slice('1990', '2015', None)), ('latitude', slice('60.5', None, None)))
    """
    dim, _, labels = text.partition("=")
    if not dim or not labels.strip(",."):
        raise argparse.ArgumentTypeError(f"{text}, must be DIM=LABELS, such as level=500,850 or time=1990..2015")
    if ".." in labels:
        first, _, last = labels.partition("..")
        return dim, slice(first or None, last or None)
    return dim, [one for one in labels.split(",") if one] if "," in labels else labels


def select(data: Data, chosen: Sequence[tuple[str, Any]] | None) -> Data:
    """Return the samples and items that `--sel` chooses; labels are numbers, else dates or text.

    Raises
    ------
    ConfigError
        If a condition is wrong, as in `Data.sel`.
    """
    from zarrfeed.base.errors import ConfigError

    for dim, label in chosen or ():
        try:
            as_numbers = _numbers(label)
        except ValueError:
            data = data.sel({dim: label})
            continue
        try:
            data = data.sel({dim: as_numbers})
        except ConfigError as error:  # years look like numbers
            try:
                data = data.sel({dim: label})
            except ConfigError:
                raise error from None
    return data


def _numbers(label: Any) -> Any:
    """Return the numbers that labels are written as.

    Raises
    ------
    ValueError
        If a label is no number.
    """
    if isinstance(label, slice):
        return slice(*(None if one is None else _numbers(one) for one in (label.start, label.stop)))
    if isinstance(label, list):
        return [_numbers(one) for one in label]
    return int(label) if re.fullmatch(r"-?[0-9]+", label, flags=re.ASCII) else float(label)
