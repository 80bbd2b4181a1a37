"""Tests of src/zarrfeed/metadata/array/."""
