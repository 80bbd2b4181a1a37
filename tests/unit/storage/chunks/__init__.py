"""Tests of src/zarrfeed/storage/chunks/."""
