"""Rules of the code base, the C++ tests, the benchmarks and the developer's tools."""
