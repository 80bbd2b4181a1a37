#pragma once
// A task: the wanted rows of one read chunk (of one cell, if the array is chunked on other axes too) of one field.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "plan/placement.h"
#include "storage/access/byte_store.h"

namespace zarrfeed {

class CarriedChunk;

/// Made by the TaskBuilder. Once the chunk was fetched, `stored` has the stored bytes, which lie in `room` or in memory
/// of the store. If the samples of the field are windows of `w` rows, `rows` has an entry for each row of a window: row
/// k of the sample at step t has the step t * w + k. Without `rows`, they are those of the windows of the samples [begin,
/// end) that lie in the chunk, which Engine::for_rows finds.
struct Task {
  size_t field = 0;
  size_t cell = 0;
  int64_t chunk = 0;
  std::shared_ptr<const std::vector<Placement>> rows;  ///< null: those of `samples` that lie in the chunk
  size_t begin = 0;
  size_t end = 0;
  std::shared_ptr<const std::vector<Placement>> samples;  ///< of the group, segment by segment
  bool pads = false;                                      ///< the rows are padded: no chunk has them
  std::shared_ptr<CarriedChunk> carried;                  ///< the chunk, if other tasks share it
  bool decodes_carried = false;                           ///< this task decodes the shared chunk
  bool is_fetched = false;           ///< the FetchQueue handed the task out; in flight until its chunk is decoded
  bool asks_first = false;           ///< the store is asked, since the chunk cannot be read on a decode thread
  std::unique_ptr<Buffer> room;      ///< buffer for the stored bytes, if the store has no memory of its own
  std::shared_ptr<const void> hold;  ///< keeps the store's memory alive
  ReadStatus status = ReadStatus::kWouldBlock;
  Bytes stored;
  std::chrono::steady_clock::time_point asked;  ///< when the chunk was requested
  std::optional<Error> error;                   ///< why the chunk could not be had, if its rows are skipped

  [[nodiscard]] std::span<const Placement> placements() const { return std::span(*rows).subspan(begin, end - begin); }
};

}  // namespace zarrfeed
