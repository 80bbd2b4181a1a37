"""The rank and worker that a process is, who asks for batches, and whether ranks agree."""
