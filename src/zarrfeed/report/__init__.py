"""Reads figures and drives nothing: explain, statistics as text, advice."""
