"""What `pack` reads: sources of samples, each through the library that its users know."""
