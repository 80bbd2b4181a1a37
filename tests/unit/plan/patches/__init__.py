"""Tests of src/zarrfeed/plan/patches/."""
