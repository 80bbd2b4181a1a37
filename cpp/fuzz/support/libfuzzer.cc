// A target under libFuzzer. `target --write-seeds=DIRECTORY` writes the seeds, and the findings, as files and ends.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>

#include "fuzz/support/fuzz.h"
#include "tests/support/temp_dir.h"

using namespace zarrfeed;
using namespace zarrfeed::fuzzing;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kOption = "--write-seeds=";
  const std::string_view option = *argc == 2 ? (*argv)[1] : "";
  if (!option.starts_with(kOption)) return 0;
  const std::filesystem::path directory = option.substr(kOption.size());
  size_t number = 0;
  for (const ByteVector& seed : first_target()->make_seeds()) {
    testing::write_file(directory / ("seed" + std::to_string(number++)), seed);
  }
  for (const Finding& finding : first_target()->findings()) {
    testing::write_file(directory / ("finding" + std::to_string(number++)), from_hex(finding.hex));
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    first_target()->run_input({data, size});
  } catch (const std::exception& error) {
    static_cast<void>(std::fprintf(stderr, "FINDING: %s\n", error.what()));
    std::abort();
  }
  return 0;
}
