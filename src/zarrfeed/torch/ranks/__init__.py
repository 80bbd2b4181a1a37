"""Which rank and worker this is, who asks for batches, and whether ranks agree."""
