"""One array: its metadata, codecs, values in memory and conversion, as a specification of ours."""
