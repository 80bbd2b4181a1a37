"""Arrays that are cut into boxes: patches, their weights, levels of a pyramid."""
