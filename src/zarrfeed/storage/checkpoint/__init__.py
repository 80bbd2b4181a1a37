"""Checkpoint files: their format, writers, readers, folders, and how long they are kept."""
