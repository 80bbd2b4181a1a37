"""Fields of every kind, and the tensors of batches that they make."""
