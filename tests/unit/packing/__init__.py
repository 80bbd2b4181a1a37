"""Tests of src/zarrfeed/packing/."""
