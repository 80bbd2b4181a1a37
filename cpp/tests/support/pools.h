#pragma once
// Pools of shared memory, and the processes that own them and open them.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "engine/shared_pool.h"
#include "tests/support/check.h"

namespace zarrfeed::testing {

constexpr size_t kBytes = size_t{64} << 10;  // whole pages of every system
constexpr size_t kPlenty = size_t{1} << 30;

/// Two processes tell each other that they got somewhere.
class Signal {
 public:
  Signal() { CHECK_EQ(pipe(ends_.data()), 0); }
  ~Signal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  template <typename T>
  void send(const T& value) const {
    if (write(ends_[1], &value, sizeof(T)) != static_cast<ssize_t>(sizeof(T))) _exit(1);
  }
  /// False if no process is left that could send, or if none sends for a minute.
  template <typename T>
  bool receive(T& value) const {
    pollfd end{ends_[0], POLLIN, 0};
    if (poll(&end, 1, 60'000) != 1) return false;
    return read(ends_[0], &value, sizeof(T)) == static_cast<ssize_t>(sizeof(T));
  }
  void send() const { send('x'); }
  void wait() const {
    char byte = 0;
    CHECK(receive(byte));
  }
  void stop_sending() { close(std::exchange(ends_[1], -1)); }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// A forked process, killed at the end of its scope.
template <typename Body>
class Child {
 public:
  explicit Child(const Body& body) : process(fork()) {
    if (process != 0) return;
    alarm(60);
    try {
      body();
    } catch (...) {  // NOLINT(bugprone-empty-catch): what it did not say is missed
    }
    pause();
    _exit(1);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void end() {
    if (process_is_there_) kill(process, SIGKILL);
    if (std::exchange(process_is_there_, false)) waitpid(process, nullptr, 0);
  }

  const pid_t process;

 private:
  bool process_is_there_ = true;
};

inline uint64_t next_id() {
  static uint64_t id = static_cast<uint64_t>(getpid()) << 32;
  return ++id;
}

inline std::shared_ptr<SharedPool> make_pool(size_t most_held_bytes = kPlenty) {
  return SharedPool::create(next_id(), most_held_bytes);
}

/// The pool as another process sees it. `pool` is what that process inherited, or has a descriptor's number of.
inline std::shared_ptr<SharedPool> opened(const SharedPool& pool) {
  return SharedPool::open(dup(pool.descriptor()), pool.id());
}

/// The file that another process has under this number.
inline int open_file_of(pid_t process, int descriptor) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

inline SharedPool::Lease filled(SharedPool& pool, uint8_t value, size_t bytes = kBytes) {
  auto lease = pool.acquire(bytes);
  CHECK(lease.has_value());
  std::memset(lease->data, value, bytes);
  return *std::move(lease);
}

inline bool holds(const uint8_t* data, size_t bytes, uint8_t value) {
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != value) return false;
  }
  return true;
}

inline size_t resident_bytes(const SharedPool& pool) {
  struct stat status{};
  CHECK_EQ(fstat(pool.descriptor(), &status), 0);
  return static_cast<size_t>(status.st_blocks) * 512;
}

}  // namespace zarrfeed::testing
