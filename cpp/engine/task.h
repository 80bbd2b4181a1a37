#pragma once
// One thing to decode: rows of one chunk (cell) of one field.

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
#include "storage/byte_store.h"

namespace zarrfeed {

class CarriedChunk;

/// After fetching it carries the stored bytes, in `room` or in memory of the store's. Where samples are windows of `w`
/// rows, `rows` are these: row k of the sample of a step is the row of step * w + k.
struct Task {
  size_t field = 0;
  size_t cell = 0;
  int64_t chunk = 0;
  std::shared_ptr<const std::vector<Placement>> rows;
  size_t begin = 0;
  size_t end = 0;
  std::shared_ptr<CarriedChunk> carried;  ///< set where other tasks need the same chunk
  bool decodes_carried = false;           ///< this task decodes it for them
  bool is_fetched = false;                ///< by a read that did not end at once; counts as in flight until decoded
  std::unique_ptr<Buffer> room;           ///< of a read that needs some
  std::shared_ptr<const void> hold;       ///< lets go of the store's memory
  ReadStatus status = ReadStatus::kWouldBlock;
  Bytes stored;
  std::chrono::steady_clock::time_point asked;
  std::optional<Error> error;  ///< why it was not fetched, where it is to be skipped

  [[nodiscard]] std::span<const Placement> placements() const { return std::span(*rows).subspan(begin, end - begin); }
};

}  // namespace zarrfeed
