"""Stored arrays: parts, codecs, shards, chosen items, and what the engine must know to read one."""
