"""Encoded images: in folders of classes, and in tar archives."""
