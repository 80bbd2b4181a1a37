"""What a user asks of patches: sizes, levels, positions, weights, and the stitching of results."""
