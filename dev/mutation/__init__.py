"""The parts of dev/mutate.py."""
