"""Tests of src/zarrfeed/plan/mixture/."""
