"""Rows about input and output: files, disks and stores that fail."""
