"""Modules that the processes of tests find first, since this folder is on their PYTHONPATH."""
