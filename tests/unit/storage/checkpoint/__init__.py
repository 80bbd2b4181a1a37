"""Tests of src/zarrfeed/storage/checkpoint/."""
