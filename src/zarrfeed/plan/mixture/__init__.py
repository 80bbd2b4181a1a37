"""Turns of several sources: whose sample comes at which step."""
