"""Tests of src/zarrfeed/metadata/face/."""
