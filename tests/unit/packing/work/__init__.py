"""Tests of src/zarrfeed/packing/work/."""
