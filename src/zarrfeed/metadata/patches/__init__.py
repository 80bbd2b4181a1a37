"""Requests for patches: sizes, levels, positions, weights, and the stitching of results."""
