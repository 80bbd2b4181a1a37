"""The parts of `dev/replay.py`: configurations, the stores that they read, and what is observed of them."""
