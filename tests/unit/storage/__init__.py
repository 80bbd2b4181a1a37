"""Tests of src/zarrfeed/storage/."""
