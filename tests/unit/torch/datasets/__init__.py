"""Tests of src/zarrfeed/torch/datasets/."""
