"""Sources of a user as fields: groups, variables, coordinates, tables, images, names and patterns."""
