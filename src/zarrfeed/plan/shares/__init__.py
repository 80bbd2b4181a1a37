"""Who reads: how ranks and workers divide an epoch, and how far each of them is."""
