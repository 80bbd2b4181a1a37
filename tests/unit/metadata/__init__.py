"""Tests of src/zarrfeed/metadata/."""
