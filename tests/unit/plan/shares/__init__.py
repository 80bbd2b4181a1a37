"""Tests of src/zarrfeed/plan/shares/."""
