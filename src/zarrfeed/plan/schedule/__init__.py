"""The plan of an epoch for one consumer: what it reads, with which resources, and how far it is."""
