"""A description, resolved: the parts of a batch, their statistics, and the plan of what is read."""
