"""Patches of images and volumes: which positions, in which sweep, and how often a chunk is decoded."""
