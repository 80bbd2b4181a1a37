"""Index arithmetic: which sample goes where, who reads it, how far a consumer is, how the memory is divided."""
