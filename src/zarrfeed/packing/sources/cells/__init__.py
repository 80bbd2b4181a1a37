"""Cells of AnnData files."""
