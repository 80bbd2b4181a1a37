"""The compiled engine, or a message that says how to get it."""

try:
    from zarrfeed import _core as core
except ImportError as error:
    raise ImportError(
        f"zarrfeed's compiled engine cannot be imported ({error}). Install the package with `pip install .` from its "
        "checkout; the source tree alone does not work."
    ) from error

__all__ = ["core"]
