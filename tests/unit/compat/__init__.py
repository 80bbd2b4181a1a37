"""Tests of src/zarrfeed/compat/."""
