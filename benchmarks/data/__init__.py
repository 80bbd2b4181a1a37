"""The stores that are measured."""
