"""Runs plans and hands out batches."""
