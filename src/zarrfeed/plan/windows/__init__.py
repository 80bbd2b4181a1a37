"""Samples that are windows of rows: which samples have all of their rows, and which span a gap."""
