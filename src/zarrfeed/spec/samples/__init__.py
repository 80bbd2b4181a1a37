"""The sample axis: rows of samples by rule, windows, segments, grids of several dimensions."""
