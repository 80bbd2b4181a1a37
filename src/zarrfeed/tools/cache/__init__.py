"""The command `zarrfeed cache`: `warm` copies a store into a node cache; `info`, `verify` and `clear` look into it."""
