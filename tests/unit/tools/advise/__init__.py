"""Tests of src/zarrfeed/tools/advise/."""
