"""Tests of src/zarrfeed/plan/order/."""
