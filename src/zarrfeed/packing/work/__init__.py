"""The work that processes share and finish: units, the folder that says what is done, digests, the whole store."""
