"""The work that processes share and finish: units, the folder of records of done units, digests, the whole store."""
