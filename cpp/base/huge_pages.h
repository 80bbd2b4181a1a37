#pragma once
// Memory straight from the system, for large buffers that are kept. The first touch of fresh memory is slow, and in
// pages of 2 MiB less so; the system gives those where a mapping begins and ends at multiples of them, and where it is
// asked to.

#include <cstddef>
#include <cstdint>

#include "base/division.h"

namespace zarrfeed {

constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t round_up(size_t n, size_t to) {
  return ceil_div(n, to) * to;
}

/// The page size of the system: 4 KiB on most, 16 or 64 KiB on some with aarch64.
size_t page_size();

/// Maps at least `bytes`, in whole pages; from 2 MiB on at a multiple of 2 MiB, so that no huge page reaches beyond it.
/// Throws std::bad_alloc if the system gives no memory.
uint8_t* map_pages(size_t bytes);
/// Unmaps the memory that map_pages(bytes) returned.
void unmap_pages(uint8_t* base, size_t bytes);

}  // namespace zarrfeed
