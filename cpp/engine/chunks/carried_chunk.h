#pragma once
// Decoded chunks that several tasks of a lane share. A window that crosses the border of a chunk needs rows of the next
// chunk, and the next group of the lane needs that chunk, too: the engine carries the decoded chunk from group to
// group.
//
// Invariants of a CarriedChunk:
//   * At most one of the tasks that share the chunk decodes it at a time. The others wait inside the chunk, and copy
//     their rows once it is decoded.
//   * If the decoding task fails, or there is no memory for the decoded bytes, the waiting tasks come back and decode
//     the chunk themselves.
//   * A waiting task is in the chunk's list and nowhere else, and holds no reference to the chunk. So no reference
//     cycle keeps a chunk alive.
//   * A chunk that patches are cut out of, or that is cut into runs of rows, is carried as a crop of it. Every task
//     that shares the chunk finds its items in the crop (shared_chunks.h says why). The task that decodes the chunk is
//     served from all of it, or from the crop if no more was decoded.
//   * The decoded bytes do not change once they are there. Their memory is released when the last task, and the last
//     group that may still make one, lets go of the chunk.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/chunks/buffer_pool.h"
#include "engine/chunks/crop_memory.h"
#include "engine/chunks/shared_chunks.h"
#include "engine/chunks/task.h"

namespace zarrfeed {

/// Recycled memory for decoded chunks, at most `max_bytes` in use at a time. Thread-safe. Where a function takes
/// `crop_room`, it is that of SharedChunk.
class CarryMemory {
 public:
  /// `chunk_bytes` has the size of a decoded chunk of each source.
  CarryMemory(const std::vector<size_t>& chunk_bytes, size_t max_bytes);

  /// Returns memory for the carried bytes of a chunk of a source; nullptr if more than `max_bytes` would be in use.
  uint8_t* acquire(size_t source, size_t crop_room = 0);
  void release(size_t source, uint8_t* bytes, size_t crop_room = 0);
  /// Sets bytes aside for one acquire(); false if more than `max_bytes` would be set aside. A caller that
  /// sets bytes aside acquires no others.
  bool reserve(size_t bytes);
  void free_reserved(size_t bytes) { reserved_ -= bytes; }
  /// Bytes that were mapped, in use or free.
  [[nodiscard]] size_t mapped_bytes() const;

 private:
  const size_t max_bytes_;
  std::atomic<size_t> in_use_{0};
  std::atomic<size_t> reserved_{0};
  std::vector<std::unique_ptr<BufferPool>> pools_;
  CropMemory crops_;
};

/// One decoded chunk that tasks share through Task::carried. Thread-safe. The functions on tasks are static, since a
/// task that waits gives up its reference to the chunk.
class CarriedChunk {
 public:
  CarriedChunk(const SharedChunk& shared, std::shared_ptr<CarryMemory> memory)
      : source_(shared.source), crop_(shared.crop), crop_room_(shared.crop_room), memory_(std::move(memory)) {}
  CarriedChunk(const CarriedChunk&) = delete;
  CarriedChunk& operator=(const CarriedChunk&) = delete;
  ~CarriedChunk() {
    if (bytes_ != nullptr) memory_->release(source_, bytes_, crop_room_);
  }

  /// Returns true if another task is decoding the chunk of `task`: then `task` was moved into the chunk, and finish()
  /// or give_up() of the other task returns it. If false, either the task shares no chunk, or the chunk is decoded, or
  /// this task has to decode it (Task::decodes_carried).
  static bool defer(Task& task);
  /// Ends decoding by `task`, with the carried bytes in memory of the chunk's CarryMemory; null: the store lacks the
  /// chunk. Returns the tasks that waited.
  static std::vector<Task> finish(Task& task, uint8_t* bytes) { return end_decoding(task, State::kReady, bytes); }
  /// Ends decoding by `task` without a result. Returns the tasks that waited; none if `task` decodes no shared chunk.
  static std::vector<Task> give_up(Task& task) { return end_decoding(task, State::kIdle, nullptr); }

  /// The memory that the carried bytes are in.
  [[nodiscard]] CarryMemory& memory() const { return *memory_; }
  /// The crop of the chunk that is carried; null: all of it. In CarryMemory it has crop_room().
  [[nodiscard]] const ChunkCrop* crop() const { return crop_ ? &*crop_ : nullptr; }
  [[nodiscard]] size_t crop_room() const { return crop_room_; }
  /// The carried bytes, for tasks that defer() let pass because the chunk is decoded; null: the store lacks the chunk.
  [[nodiscard]] const uint8_t* bytes() const { return bytes_; }

 private:
  enum class State { kIdle, kDecoding, kReady };

  static std::vector<Task> end_decoding(Task& task, State state, uint8_t* bytes);

  const size_t source_;
  const std::optional<ChunkCrop> crop_;
  const size_t crop_room_;
  const std::shared_ptr<CarryMemory> memory_;
  std::mutex mutex_;  ///< guards the members below; no other mutex is taken while it is held
  State state_ = State::kIdle;
  std::vector<Task> waiting_;
  uint8_t* bytes_ = nullptr;  ///< final once the state is kReady
};

/// Chunks that the tasks of a group share with each other or with the next group, by source, run and cell.
using CarriedChunks = std::map<ChunkKey, std::shared_ptr<CarriedChunk>>;

/// Sets Task::carried of the tasks whose chunk is one of `chunks`.
void share_chunks(const CarriedChunks& chunks, std::span<Task> tasks);

/// The shared chunks of the groups of an epoch. Not thread-safe: the engine calls it under its mutex.
/// Invariant: a chunk that the plan lets a group share with the next one of its lane is the same object for both.
class CarryTable {
 public:
  explicit CarryTable(std::shared_ptr<CarryMemory> memory) : memory_(std::move(memory)) {}

  /// Returns the chunks that `group` shares, which find_shared() found, and keeps those that `next`, the next group of
  /// its lane, needs. Called once for each group, in the order of admission. `cached` has chunks that the group shares
  /// with others, if no group hands them to it.
  CarriedChunks take(size_t group, int64_t next, std::span<const SharedChunk> shared, CarriedChunks cached = {});
  /// Lets go of all chunks.
  void clear() { for_later_.clear(); }

  [[nodiscard]] CarryMemory& memory() const { return *memory_; }

 private:
  const std::shared_ptr<CarryMemory> memory_;
  std::map<size_t, CarriedChunks>
      for_later_;  ///< group that is not admitted yet -> chunks that an earlier group passes on
};

}  // namespace zarrfeed
