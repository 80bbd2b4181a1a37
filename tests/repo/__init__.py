"""Rules of the code base, of its documentation and releases, and the developer's tools."""
