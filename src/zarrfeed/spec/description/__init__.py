"""The expression and the options that make a dataset, and the editions of data that grow."""
