#include "engine/pool_file.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace zarrfeed {
namespace {

constexpr uint64_t kMostReserved = uint64_t{1} << 38;

/// True if the user limits the addresses that a process may reserve, as some clusters do: the addresses are better left
/// to others.
[[maybe_unused]] bool has_limit(decltype(RLIMIT_AS) resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

int make_file() {
#ifdef MFD_CLOEXEC
  if (has_limit(RLIMIT_AS) || has_limit(RLIMIT_FSIZE)) {
    throw Error(ErrorKind::kUnsupported, "the addresses of this process, or its files, are limited (ulimit -v, -f)");
  }
  const int descriptor = memfd_create("zarrfeed-batches", MFD_CLOEXEC);
  if (descriptor >= 0) return descriptor;
#endif
  throw Error(ErrorKind::kUnsupported, "this system has no files without a name (memfd_create)");
}

uint64_t most_reserved() {
  const uint64_t stack = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return std::min(kMostReserved, std::bit_floor(stack) >> 8);
}

uint8_t* map_file(int descriptor, uint64_t bytes) {
  void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return base == MAP_FAILED ? nullptr : static_cast<uint8_t*>(base);
}

void map_pages(uint8_t* base, size_t bytes) {
#ifdef __linux__
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE since Linux 5.14; older ones refuse it
  madvise(base, bytes, kPopulateWrite);
#else
  static_cast<void>(base);
  static_cast<void>(bytes);
#endif
}

void remove_pages(uint8_t* base, size_t bytes) {
#ifdef MADV_REMOVE
  madvise(base, bytes, MADV_REMOVE);
#else
  static_cast<void>(base);
  static_cast<void>(bytes);
#endif
}

bool make_private(uint8_t* base, size_t bytes) {
#ifdef MREMAP_FIXED
  void* const copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  std::memcpy(copy, base, bytes);
  return mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, base) == base;
#else
  static_cast<void>(base);
  static_cast<void>(bytes);
  return false;
#endif
}

uint8_t* map_view(int descriptor, uint64_t bytes) {
#ifdef MREMAP_FIXED
  void* const base = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
  return base == MAP_FAILED ? nullptr : static_cast<uint8_t*>(base);
#else
  static_cast<void>(descriptor);
  static_cast<void>(bytes);
  return nullptr;
#endif
}

bool show_view(uint8_t* base, uint8_t* view, size_t bytes) {
#ifdef MREMAP_FIXED
  if (mremap(view, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, base) != base) return false;
  return mprotect(base, bytes, PROT_READ | PROT_WRITE) == 0;
#else
  static_cast<void>(base);
  static_cast<void>(view);
  static_cast<void>(bytes);
  return false;
#endif
}

}  // namespace zarrfeed
