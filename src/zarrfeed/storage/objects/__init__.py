"""Objects of a bucket or folder: listings, patterns, and where each of them lies."""
