// The main() of every test program: `PROGRAM [SUBJECT [PART]]` runs the tests of a subject whose name contains PART.
// Apart from check.cc, since fuzz targets have libFuzzer's.

#include "tests/support/check.h"

int main(int argc, char** argv) {
  return zarrfeed::testing::run_tests(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
}
