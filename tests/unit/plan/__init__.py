"""Tests of src/zarrfeed/plan/."""
