"""Readers and writers of torch.distributed.checkpoint."""
