"""The samples that there are: selections, windows, joins and splits, as index arithmetic."""
