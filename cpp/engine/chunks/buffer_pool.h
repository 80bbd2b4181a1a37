#pragma once
// Recycled buffers for the batches of one field: on many machines the first touch of fresh memory costs more than the
// decompression that fills it.
//
// Invariant: a buffer is either free, or out with exactly one owner (the engine while it fills the batch, then the
// holder of the tensor). It becomes free only through release(), so a batch that a user still holds is never
// overwritten.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace zarrfeed {

class BufferPool {
 public:
  /// A pool of buffers of `buffer_bytes` each. With `provided`, the pool allocates no memory and hands out the buffers
  /// of provide().
  BufferPool(size_t buffer_bytes, bool provided);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Returns a buffer: the one that was released last, or a new one. With `provided`, nullptr if all buffers are in
  /// use. Throws std::bad_alloc if the system has no memory. Thread-safe.
  uint8_t* acquire();
  /// Takes a buffer back. Thread-safe; in a process forked from the owner it does nothing.
  void release(uint8_t* buffer);
  /// Adds a buffer that the caller owns and keeps alive until the engine has handed it back or was closed.
  void provide(uint8_t* buffer);
  /// Returns all free memory to the system, now and whenever a buffer is released from now on.
  void retire();

  [[nodiscard]] size_t buffer_bytes() const { return buffer_bytes_; }
  /// Bytes mapped by this pool, in use or free. Provided memory does not count.
  [[nodiscard]] size_t mapped_bytes() const;

 private:
  /// Memory is mapped in slabs, so that small batches do not cost a mapping each.
  struct Slab {
    uint8_t* base;
    size_t bytes;
    size_t out;  ///< buffers in use
  };
  struct FreeBuffer {
    uint8_t* buffer;
    size_t slab;
  };

  void add_slab();
  void unmap_if_unused(size_t slab);

  const size_t buffer_bytes_;
  const size_t spacing_;  ///< bytes between buffers of a slab
  const bool provided_;
  const pid_t owner_;
  mutable std::mutex mutex_;
  bool retired_ = false;
  std::vector<Slab> slabs_;
  std::vector<FreeBuffer> free_;
  std::unordered_map<uint8_t*, size_t> slab_of_;  ///< slab of each buffer in use
};

}  // namespace zarrfeed
