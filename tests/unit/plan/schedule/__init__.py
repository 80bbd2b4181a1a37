"""Tests of src/zarrfeed/plan/schedule/."""
