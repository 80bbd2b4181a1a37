#pragma once
// Memory that is written before it is read, and reused.

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace zarrfeed {

/// A growable byte buffer whose content is not initialised and not kept when it grows. From 2 MiB on it grows in steps
/// of that size, in huge pages: chunks that differ a little in size must not cost fresh memory each.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { free(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// Returns room for `size` bytes, valid until the next call.
  MutableBytes reserve(size_t size);
  [[nodiscard]] uint8_t* data() const { return data_; }
  [[nodiscard]] size_t capacity() const { return capacity_; }

 private:
  void free();

  uint8_t* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace zarrfeed
