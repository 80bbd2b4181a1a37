// Decodes a chunk once for the tasks of a lane that share it: see carried_chunk.h.

#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/carried_chunk.h"
#include "engine/engine.h"

namespace zarrfeed {

void Engine::scatter_carried(Task& task, WorkerScratch& scratch) {
  scatter_rows(task, task.carried->bytes(), scratch, streaming_);
}

bool Engine::decode_carried(Task& task, WorkerScratch& scratch) {
  if (!task.decodes_carried) return false;
  uint8_t* bytes = nullptr;
  if (task.status == ReadStatus::kMissing) {
    stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
  } else {
    const FieldDecoder& field = field_of(task);
    CarryMemory& memory = carry_table_->memory();
    bytes = memory.acquire(task.field);
    if (bytes == nullptr) {
      resume(CarriedChunk::give_up(task));
      return false;
    }
    try {
      name_errors(task, [&] { field.decode_into(task.stored, {bytes, field.decoded_bytes()}, scratch, stats_); });
    } catch (...) {
      memory.release(task.field, bytes);
      throw;
    }
  }
  resume(CarriedChunk::finish(task, bytes));
  scatter_carried(task, scratch);
  return true;
}

void Engine::resume(std::vector<Task> waiting) {
  if (waiting.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    tasks_.insert(tasks_.begin(), std::make_move_iterator(waiting.begin()), std::make_move_iterator(waiting.end()));
  }
  work_cv_.notify_all();
}

}  // namespace zarrfeed
