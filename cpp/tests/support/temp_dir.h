#pragma once
// A directory of a test's own, and files in it.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace zarrfeed::testing {

/// Is deleted with all that is in it.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Writes a file, and the directories above it.
void write_file(const std::filesystem::path& path, std::span<const uint8_t> bytes);
std::vector<uint8_t> read_file(const std::filesystem::path& path);

/// Whether a read can tell that it would wait for the device. On tmpfs, and under an emulator of programs, it cannot.
bool tells_what_is_cached(const std::filesystem::path& directory);

/// Asks the system to forget the pages of every file below `directory`, after writing them to the device.
/// True if they are read from the device next, and reading them would wait; false where the file system knows no waiting.
bool drop_from_page_cache(const std::filesystem::path& directory);

/// Number of open file descriptors of this process.
size_t open_descriptors();

}  // namespace zarrfeed::testing
