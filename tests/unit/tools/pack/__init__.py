"""Tests of src/zarrfeed/tools/pack/."""
