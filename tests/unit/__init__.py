"""Tests of one module each, in the folders of src/zarrfeed."""
