"""Check that Pillow, which decodes images, is installed."""

from __future__ import annotations

from zarrfeed.base.errors import ConfigError


def check_pillow(asked: str) -> None:
    """Raise ConfigError if Pillow is not installed; `asked` is the option that needs it, such as "decode = 'image'"."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{asked} needs Pillow: pip install pillow") from error
