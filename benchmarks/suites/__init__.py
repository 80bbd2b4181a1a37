"""What is measured: one module a command."""
