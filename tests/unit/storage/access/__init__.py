"""Tests of src/zarrfeed/storage/access/."""
