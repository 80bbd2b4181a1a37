"""Tests of src/zarrfeed/torch/batches/."""
