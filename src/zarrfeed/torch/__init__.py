"""The only folder that imports torch: datasets, loader, epoch iterator, ranks, workers, pinned memory."""
