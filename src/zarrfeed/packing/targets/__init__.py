"""The arrays that are written: how long chunks and shards are, and the encoding, which may be the fastest measured."""
