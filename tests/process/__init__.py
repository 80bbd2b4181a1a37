"""Ranks, workers, signals, exits: what needs processes of its own."""
