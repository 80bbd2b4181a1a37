"""The blocks that orders permute: chunks, runs of rows of chunks, and what blocks decode."""
