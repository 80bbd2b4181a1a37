"""Tests of src/zarrfeed/spec/."""
