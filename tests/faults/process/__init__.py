"""Rows about processes: signals, exits, kills, and what consumers do."""
