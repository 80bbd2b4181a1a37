"""The interfaces of other loaders over zarrfeed, so that a script that uses one runs with its import line changed."""
