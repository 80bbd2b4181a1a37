"""Tests of src/zarrfeed/metadata/patches/."""
