"""Stored numbers, and what batches have of them: dtypes, conversions, missing values, statistics."""
