#pragma once
// Decoded chunks that several tasks of a lane need: windows that cross the border of a chunk need rows of the next one, and
// the next group of the lane needs that chunk, too.
//
// Invariant: of the tasks that share a CarriedChunk one decodes it, and the others wait for that one and then copy their
// rows. If that task fails, or there is no room for the decoded bytes, the others decode the chunk themselves. A task that
// waits lies in `waiting` and nowhere else, and holds no reference to the chunk, so that nothing refers to itself. The
// bytes are given back when the last task, or the last group that may still make one, lets go of the chunk.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "engine/buffer_pool.h"
#include "engine/task.h"

namespace zarrfeed {

/// Recycled memory for decoded chunks, of at most `max_bytes` at a time. Thread-safe.
class CarryMemory {
 public:
  /// One size of chunks a field.
  CarryMemory(const std::vector<size_t>& chunk_bytes, size_t max_bytes);

  /// Returns room for a decoded chunk of a field; nullptr if all that is allowed is in use.
  uint8_t* acquire(size_t field);
  void release(size_t field, uint8_t* bytes);
  /// Memory that was taken from the system.
  [[nodiscard]] size_t mapped_bytes() const;

 private:
  const size_t max_bytes_;
  std::atomic<size_t> in_use_{0};
  std::vector<std::unique_ptr<BufferPool>> pools_;
};

struct CarriedChunk {
  enum class State { kIdle, kDecoding, kReady };

  CarriedChunk(size_t of_field, std::shared_ptr<CarryMemory> from) : field(of_field), memory(std::move(from)) {}
  CarriedChunk(const CarriedChunk&) = delete;
  CarriedChunk& operator=(const CarriedChunk&) = delete;
  ~CarriedChunk() {
    if (bytes != nullptr) memory->release(field, bytes);
  }

  const size_t field;
  const std::shared_ptr<CarryMemory> memory;
  std::mutex mutex;  ///< for what follows; taken before no other lock
  State state = State::kIdle;
  std::vector<Task> waiting;
  uint8_t* bytes = nullptr;  ///< final once the state is kReady; null then: the store lacks the chunk
};

/// What a group shares with the next one of its lane, or twice inside: by field, chunk and cell.
using CarriedChunks = std::map<std::tuple<size_t, int64_t, size_t>, std::shared_ptr<CarriedChunk>>;

}  // namespace zarrfeed
