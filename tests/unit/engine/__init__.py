"""Tests of src/zarrfeed/engine/."""
