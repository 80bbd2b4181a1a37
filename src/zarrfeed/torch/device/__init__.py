"""Batches on an accelerator before a training step asks for them."""
