#include "tests/support/temp_dir.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

namespace zarrfeed::testing {
namespace {

namespace fs = std::filesystem;

/// True if the first byte of an open file cannot be read without waiting.
bool would_wait(int fd) {
#ifdef RWF_NOWAIT
  uint8_t byte = 0;
  const iovec piece{&byte, 1};
  return preadv2(fd, &piece, 1, 0, RWF_NOWAIT) < 0;
#else
  static_cast<void>(fd);
  return false;
#endif
}

}  // namespace

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "zarrfeed-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_file(const fs::path& path, std::span<const uint8_t> bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::system_error(EIO, std::generic_category(), path.string());
}

std::vector<uint8_t> read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool tells_what_is_cached(const fs::path& directory) {
  const fs::path probe = directory / ".probe";
  write_file(probe, std::vector<uint8_t>(1, 0));
  const int file = open(probe.c_str(), O_RDONLY | O_CLOEXEC);
  const bool tells = file >= 0 && !would_wait(file);
  if (file >= 0) close(file);
  fs::remove(probe);
  return tells;
}

bool drop_from_page_cache(const fs::path& directory) {
  // A file of our own tells whether reads wait, since asking about another may start to read it.
  const fs::path probe = directory / ".probe";
  write_file(probe, std::vector<uint8_t>(1, 0));
  const int root = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (root < 0) throw std::system_error(errno, std::generic_category(), directory.string());
  syncfs(root);  // dirty pages cannot be dropped
  close(root);
  bool waits = false;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const int fd = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (entry.path() == probe) waits = would_wait(fd);
    close(fd);
  }
  fs::remove(probe);
  return waits;
}

size_t open_descriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace zarrfeed::testing
