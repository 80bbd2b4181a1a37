"""Tests of src/zarrfeed/base/."""
