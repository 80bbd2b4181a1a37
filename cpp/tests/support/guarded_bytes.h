#pragma once
// Bytes that end where accessible memory ends: a read or write one byte behind them ends the process, also one by the
// code of libblosc2.a, which sanitizers do not see.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

#include "base/huge_pages.h"

namespace zarrfeed::testing {

class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size) : size_(size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t accessible = round_up(size, page);
    mapped_ = accessible + page;
    void* base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<uint8_t*>(base);
    mprotect(base_ + accessible, page, PROT_NONE);
    data_ = base_ + accessible - size;
  }
  explicit GuardedBytes(std::span<const uint8_t> content) : GuardedBytes(content.size()) {
    std::copy(content.begin(), content.end(), data_);
  }
  ~GuardedBytes() { munmap(base_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  [[nodiscard]] std::span<uint8_t> span() const { return {data_, size_}; }
  /// True if nothing was written to the accessible memory in front of the bytes.
  [[nodiscard]] bool is_untouched_before() const {
    return std::all_of(base_, data_, [](uint8_t byte) { return byte == 0; });
  }
  [[nodiscard]] std::vector<uint8_t> copy() const { return {data_, data_ + size_}; }

 private:
  size_t size_;
  size_t mapped_ = 0;
  uint8_t* base_ = nullptr;
  uint8_t* data_ = nullptr;
};

}  // namespace zarrfeed::testing
