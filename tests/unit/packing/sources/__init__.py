"""Tests of src/zarrfeed/packing/sources/."""
