"""Turns what the user passed (paths, URLs, groups, xarray) into specs."""
