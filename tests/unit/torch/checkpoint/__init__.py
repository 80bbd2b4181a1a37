"""Tests of src/zarrfeed/torch/checkpoint/."""
