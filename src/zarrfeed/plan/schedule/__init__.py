"""The plan of an epoch for one consumer: its samples, its resources, and its progress."""
