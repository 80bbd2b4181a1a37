"""Many stores as one, and stores that grow."""
