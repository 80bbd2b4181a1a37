#include "storage/access/retry.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <random>

namespace zarrfeed {
namespace {

constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{10000};

constexpr int kShortOf[] = {EMFILE, ENFILE, ENOMEM, ENOBUFS};

constexpr int kTransient[] = {EIO,          EAGAIN,   EBUSY,       EINTR,        ETIMEDOUT,    ESTALE, ECONNRESET,
                              ECONNABORTED, ENETDOWN, ENETUNREACH, ECONNREFUSED, EHOSTUNREACH, EPIPE,
#ifdef EREMOTEIO
                              EREMOTEIO,
#endif
                              EHOSTDOWN};

template <size_t n>
bool contains(const int (&values)[n], int value) {
  return std::find(std::begin(values), std::end(values), value) != std::end(values);
}

}  // namespace

bool is_transient(int errno_value) {
  return contains(kTransient, errno_value) || contains(kShortOf, errno_value);
}

std::chrono::milliseconds pause_after(size_t tries) {
  const auto longest = std::min(kLongestPause, kFirstPause * (int64_t{1} << std::min<size_t>(tries, 20)));
  thread_local std::minstd_rand random{std::random_device{}()};
  return std::chrono::milliseconds(
      std::uniform_int_distribution<int64_t>(longest.count() / 2, longest.count())(random));
}

bool is_of_chunk(int errno_value) {
  return !contains(kShortOf, errno_value) && errno_value != ETIMEDOUT && errno_value != ESHUTDOWN;
}

bool is_of_chunk(const Error& error) {
  // Unsupported: a chunk may name a compressor that its array does not use.
  if (error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kUnsupported) return true;
  return error.kind() == ErrorKind::kIo && is_of_chunk(error.errno_value());
}

}  // namespace zarrfeed
