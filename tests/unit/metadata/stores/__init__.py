"""Tests of src/zarrfeed/metadata/stores/."""
