"""Tests of src/zarrfeed/report/."""
