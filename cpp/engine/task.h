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
#include "codecs/codec.h"
#include "plan/placement.h"
#include "plan/row_order.h"
#include "storage/file_store.h"

namespace zarrfeed {

struct CarriedChunk;

/// After fetching it carries the bytes, or a view of them. Where samples are windows of `w` rows, `rows` are these: row k of
/// the sample of a step is the row of step * w + k.
struct Task {
  size_t field = 0;
  size_t cell = 0;
  int64_t chunk = 0;
  std::shared_ptr<const std::vector<Placement>> rows;
  size_t begin = 0;
  size_t end = 0;
  std::shared_ptr<CarriedChunk> carried;  ///< set where other tasks need the same chunk
  bool decodes_carried = false;           ///< this task decodes it for them
  PendingRead pending;
  std::unique_ptr<Buffer> stored;  ///< set while a fetch thread works on the task and after
  uint64_t request_id = 0;         ///< of the request, where there is one; from 1
  Bytes answer;                    ///< to the request: bytes of the Python store's
  std::chrono::steady_clock::time_point asked;
  ReadStatus status = ReadStatus::kWouldBlock;
  std::optional<Error> error;  ///< why it was not fetched, where it is to be skipped

  [[nodiscard]] bool is_fetched() const { return stored != nullptr || request_id != 0; }
  [[nodiscard]] Bytes bytes() const { return stored != nullptr ? Bytes{stored->data(), pending.size} : answer; }
  [[nodiscard]] std::span<const Placement> placements() const { return std::span(*rows).subspan(begin, end - begin); }
};

}  // namespace zarrfeed
