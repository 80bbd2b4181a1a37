"""The classes that users iterate: datasets and loaders."""
