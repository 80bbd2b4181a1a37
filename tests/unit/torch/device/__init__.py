"""Tests of src/zarrfeed/torch/device/."""
