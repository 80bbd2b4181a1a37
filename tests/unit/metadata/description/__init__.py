"""Tests of src/zarrfeed/metadata/description/."""
