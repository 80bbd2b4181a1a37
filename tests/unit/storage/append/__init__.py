"""Tests of src/zarrfeed/storage/append/."""
