"""Tests of src/zarrfeed/plan/budget/."""
