"""The package beside the libraries, servers and scripts that users have."""
