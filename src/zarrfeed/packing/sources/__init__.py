"""The data that is read: each kind as numbered samples, recognised by the names of its files."""
