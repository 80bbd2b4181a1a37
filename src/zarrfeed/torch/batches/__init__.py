"""Batches as tensors: their memory, their parts, and where one lies in its epoch."""
