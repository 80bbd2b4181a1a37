"""What a user passed, as fields: groups, variables, coordinates, tables, images, names and patterns."""
