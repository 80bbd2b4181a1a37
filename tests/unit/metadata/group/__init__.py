"""Tests of src/zarrfeed/metadata/group/."""
