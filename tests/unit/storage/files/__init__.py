"""Tests of src/zarrfeed/storage/objects/."""
