"""Tests of src/zarrfeed/packing/targets/."""
