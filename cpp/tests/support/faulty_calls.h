#pragma once
// A program that includes this has its own openat() and pread(), which do as they are told. One file of a program includes
// it, since the functions are defined here.

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace zarrfeed::testing {

/// What the calls of this process do to those who read.
struct Faults {
  std::atomic<int> reads_to_fail{0};  ///< the next so many reads that wait
  std::atomic<int> reads_to_pass{0};  ///< before those, so many do not fail
  std::atomic<int> opens_to_fail{0};
  std::atomic<int> error{EIO};
  std::atomic<bool> stalls{false};  ///< reads that wait do not return until release()
  std::atomic<bool> stalls_open{false};
  std::atomic<int> stalled{0};  ///< threads that are held up
  std::mutex mutex;
  std::condition_variable released;
  int releases = 0;

  void release() {
    stalls = stalls_open = false;
    {
      const std::lock_guard lock(mutex);
      ++releases;
    }
    released.notify_all();
    while (stalled != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  void hold() {
    std::unique_lock lock(mutex);
    ++stalled;
    released.wait(lock, [this, seen = releases] { return releases != seen; });
    --stalled;
  }

  static bool take(std::atomic<int>& count) {
    int left = count.load();
    while (left > 0 && !count.compare_exchange_weak(left, left - 1)) {
    }
    return left > 0;
  }
};

inline Faults faults;

}  // namespace zarrfeed::testing

extern "C" {

ssize_t pread(int fd, void* out, size_t size, off_t offset) {
  if (zarrfeed::testing::faults.stalls) zarrfeed::testing::faults.hold();
  if (!zarrfeed::testing::Faults::take(zarrfeed::testing::faults.reads_to_pass) &&
      zarrfeed::testing::Faults::take(zarrfeed::testing::faults.reads_to_fail)) {
    errno = zarrfeed::testing::faults.error;
    return -1;
  }
  return syscall(SYS_pread64, fd, out, size, offset);
}

ssize_t pread64(int fd, void* out, size_t size, off_t offset) {
  return pread(fd, out, size, offset);
}

/// As if nothing were in the page cache.
ssize_t preadv2(int /*fd*/, const iovec* /*pieces*/, int /*count*/, off_t /*offset*/, int /*flags*/) {
  errno = EAGAIN;
  return -1;
}

ssize_t preadv64v2(int fd, const iovec* pieces, int count, off_t offset, int flags) {
  return preadv2(fd, pieces, count, offset, flags);
}

int openat(int directory, const char* path, int flags, ...) {
  if ((flags & O_DIRECTORY) == 0) {
    if (zarrfeed::testing::faults.stalls_open) zarrfeed::testing::faults.hold();
    if (zarrfeed::testing::Faults::take(zarrfeed::testing::faults.opens_to_fail)) {
      errno = zarrfeed::testing::faults.error;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_openat, directory, path, flags, 0));
}

int openat64(int directory, const char* path, int flags, ...) {
  return openat(directory, path, flags);
}
}
