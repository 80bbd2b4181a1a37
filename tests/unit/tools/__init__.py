"""Tests of src/zarrfeed/tools/."""
