#pragma once
// Recycled memory for the crops of chunks that patches are cut out of. It has as many sizes as there are
// ways for a wall to cut a chunk.
//
// Invariants:
//   * No more than `max_bytes` are held, in use or free.
//   * Memory is free, or out with one owner. It becomes free only through release().

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

namespace zarrfeed {

class CropMemory {
 public:
  explicit CropMemory(size_t max_bytes);
  ~CropMemory();
  CropMemory(const CropMemory&) = delete;
  CropMemory& operator=(const CropMemory&) = delete;

  /// Rounds needed bytes up to the bytes to ask for: up to a sixteenth more, so that other crops can have them later.
  static size_t room_for(size_t bytes);
  /// Returns memory of a size: the one that was released last, or new memory, for which memory of other sizes that is
  /// free is given back to the system. nullptr if more than `max_bytes` would be held. Throws std::bad_alloc if the
  /// system has no memory. Thread-safe.
  uint8_t* acquire(size_t bytes);
  /// Takes back memory of this size. Thread-safe; in a process forked from the owner it does nothing.
  void release(uint8_t* memory, size_t bytes);
  /// Bytes in use or free.
  [[nodiscard]] size_t held_bytes() const;

 private:
  struct Free {
    uint8_t* memory;
    uint64_t released;  ///< number of releases before this one
  };

  /// Gives back the memory that has been free for longest; false if none is free. The caller holds `mutex_`.
  bool give_back();

  const size_t max_bytes_;
  const pid_t owner_;
  mutable std::mutex mutex_;
  size_t held_bytes_ = 0;
  uint64_t released_ = 0;
  std::map<size_t, std::deque<Free>> free_;  ///< by size, each in the order of release; no list is empty
};

}  // namespace zarrfeed
