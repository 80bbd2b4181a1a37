"""Rows about damaged chunks."""
