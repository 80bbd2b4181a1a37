"""One pass over an epoch: sessions, iterators, versions of the data, and the end of workers."""
