#pragma once
// Items from anywhere in a chunk to contiguous memory, with their byte order made native.

#include <cstddef>
#include <cstdint>
#include <span>

namespace zarrfeed {

/// Copies `count` items, `stride` bytes apart in the source, to contiguous memory.
using ItemCopy = void (*)(uint8_t* dest, const uint8_t* source, int64_t count, int64_t stride);

/// Returns the kernel for items of `item_bytes` whose units of `swap_bytes` are reversed (0: copied as they are). Throws
/// Error(kUnsupported) for other widths than numbers have.
ItemCopy choose_copy(size_t item_bytes, size_t swap_bytes);

/// Returns the kernel that does the same for items in reverse order: it takes a stride of -item_bytes for granted.
ItemCopy choose_reversed_copy(size_t item_bytes, size_t swap_bytes);

/// Writes items `first`, `first + 1`, ... of a pattern of one or several items, which repeats.
void write_pattern(uint8_t* dest, std::span<const uint8_t> pattern, size_t item_bytes, size_t first, size_t count);

/// Runs of `bytes` bytes each: how many, and how far they are apart.
struct RunRows {
  int64_t count;
  int64_t dest_stride;
  int64_t source_stride;
  size_t bytes;
};

/// Copies each run. Runs of a few bytes, the power of two, are copied without a call for each.
void copy_rows(uint8_t* dest, const uint8_t* source, RunRows rows);

/// Bytes of the largest items that can be converted.
inline constexpr size_t kMaxConvertedItem = 8;

}  // namespace zarrfeed
