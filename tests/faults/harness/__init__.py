"""What a row is, and how its tries are made and counted."""
