"""Programs over the public API: the command line, `verify`, `bench`, `demo`; only the command line imports them."""
