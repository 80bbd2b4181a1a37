"""Tests of src/zarrfeed/torch/passes/."""
