// The file of an entry: what is written where a call writes less than it was asked to.

#include "storage/cache/cache_entry.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::cache_entry_test {
namespace {

std::vector<uint8_t> content(size_t size) {
  std::vector<uint8_t> out(size);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<uint8_t>(i * 7 + i / 256);
  return out;
}

CacheEntry entry() {
  return CacheEntry({.store = "s3://bucket", .object = "a/c/0", .version = "v1"});
}

std::vector<uint8_t> bytes_of(int fd, size_t piece, const std::function<void()>& between = [] {}) {
  std::vector<uint8_t> all, some(piece);
  for (;;) {
    const ssize_t n = read(fd, some.data(), some.size());
    if (n < 0 && errno == EINTR) continue;
    CHECK(n >= 0);
    if (n == 0) return all;
    all.insert(all.end(), some.begin(), some.begin() + n);
    between();
  }
}

}  // namespace

TEST(an_entry_is_whole_if_its_writer_is_interrupted_again_and_again) {
  const std::vector<uint8_t> payload = content(size_t{2} << 20);
  const TempDir directory;
  const int file = open((directory.path() / "entry").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  CHECK_EQ(CacheEntryFile::write(file, entry(), payload), 0);
  CHECK_EQ(lseek(file, 0, SEEK_SET), off_t{0});
  const std::vector<uint8_t> expected = bytes_of(file, size_t{1} << 20);
  close(file);
  CHECK_EQ(expected.size(), CacheEntryFile::size_of(entry(), payload.size()));

  // A signal ends a write to a pipe that is full, with what it has written until then.
  struct sigaction ignoring{}, before{};
  ignoring.sa_handler = [](int) {};
  sigaction(SIGUSR1, &ignoring, &before);
  std::array<int, 2> ends{};
  CHECK_EQ(pipe(ends.data()), 0);
  int error = -1;
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    error = CacheEntryFile::write(ends[1], entry(), payload);
    ended = true;
    close(ends[1]);
  });
  const std::vector<uint8_t> written = bytes_of(ends[0], 5000, [&] {
    if (!ended) pthread_kill(writer.native_handle(), SIGUSR1);
  });
  writer.join();
  close(ends[0]);
  sigaction(SIGUSR1, &before, nullptr);
  CHECK_EQ(error, 0);
  CHECK(written == expected);
}

}  // namespace zarrfeed::testing::cache_entry_test
