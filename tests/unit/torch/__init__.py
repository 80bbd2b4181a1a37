"""Tests of src/zarrfeed/torch/."""
