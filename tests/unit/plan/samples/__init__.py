"""Tests of src/zarrfeed/plan/samples/."""
