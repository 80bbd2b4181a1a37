"""What people see of a run: results, tables, charts, goals."""
