#pragma once
// A task: the wanted rows of one read chunk, or of a run of its rows (of one cell, if the array is chunked on other
// axes too), of one source, for each output that draws from it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "base/stored_bytes.h"
#include "plan/placement.h"
#include "storage/access/byte_store.h"

namespace zarrfeed {

class CarriedChunk;

/// The rows of a task that one output gets. If samples are windows of `w` rows, `rows` has an entry for each row of a
/// window: row k of the sample at step t has the step t * w + k. Without `rows`, SlotWriter finds the rows of the
/// windows of the samples [begin, end) that lie in the chunk.
struct TaskRows {
  size_t output = 0;
  std::shared_ptr<const std::vector<Placement>> rows;  ///< null: the rows of Task::samples that lie in the chunk
  size_t begin = 0;
  size_t end = 0;

  [[nodiscard]] std::span<const Placement> placements() const { return std::span(*rows).subspan(begin, end - begin); }
};

/// The rows of a task by output: mostly one output, which takes no memory of its own.
class RowsOfOutputs {
 public:
  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = TaskRows;

    Iterator() = default;
    Iterator(const RowsOfOutputs& of, size_t at) : of_(&of), at_(at) {}
    const TaskRows& operator*() const { return (*of_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++at_;
      return before;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const RowsOfOutputs* of_ = nullptr;
    size_t at_ = 0;
  };

  void add(TaskRows rows) {
    if (size_++ == 0) {
      first_ = std::move(rows);
    } else {
      others_.push_back(std::move(rows));
    }
  }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] const TaskRows& front() const { return first_; }
  [[nodiscard]] const TaskRows& operator[](size_t i) const { return i == 0 ? first_ : others_[i - 1]; }
  [[nodiscard]] Iterator begin() const { return {*this, 0}; }
  [[nodiscard]] Iterator end() const { return {*this, size_}; }

 private:
  size_t size_ = 0;
  TaskRows first_;
  std::vector<TaskRows> others_;
};

/// Made by the TaskBuilder. Once the chunk was fetched, `stored` has the stored bytes, which lie in `room` or in memory
/// of the store.
struct Task {
  size_t source = 0;  ///< number of the source (output_table.h)
  size_t cell = 0;
  int64_t chunk = 0;
  int64_t run = 0;  ///< number of the run (row_runs.h); for patches, and where chunks are not cut, of the chunk
  RowsOfOutputs of_outputs;                               ///< not empty, each output once; one if there is no chunk
  std::shared_ptr<const std::vector<Placement>> samples;  ///< samples of the group, segment by segment
  bool has_chunk = true;                                  ///< rows of outputs that are not stored have none
  bool pads = false;                                      ///< the rows are padded: no chunk has them
  std::shared_ptr<CarriedChunk> carried;                  ///< the chunk, if other tasks share it
  bool decodes_carried = false;                           ///< this task decodes the shared chunk
  bool is_fetched = false;  ///< the FetchQueue handed the task out; in flight until its chunk is decoded
  std::shared_ptr<const ChunkParts> parts;    ///< the parts of the stored bytes that are enough; null: all are read
  bool reads_whole = false;                   ///< the parts that were read did not decode: all of the chunk is read
  bool asks_first = false;                    ///< the store is asked, since the chunk cannot be read on a decode thread
  std::unique_ptr<Buffer> room;               ///< buffer for the stored bytes, if the store has no memory of its own
  std::shared_ptr<const void> hold;           ///< keeps the store's memory alive
  std::shared_ptr<UndecodedChunk> undecoded;  ///< makes of `stored` the chunk that the source decodes; null: it is it
  ReadStatus status = ReadStatus::kWouldBlock;
  StoredBytes stored;
  std::chrono::steady_clock::time_point asked;  ///< time of the request for the chunk
  std::optional<Error> error;                   ///< the error of the chunk, if its rows are skipped
};

}  // namespace zarrfeed
