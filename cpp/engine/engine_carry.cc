// Decodes a chunk once for the tasks of a lane that share it: see carried_chunk.h.

#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/chunks/carried_chunk.h"
#include "engine/engine.h"

namespace zarrfeed {

void Engine::scatter_carried(Task& task, WorkerScratch& scratch) {
  scatter_rows(task, task.carried->bytes(), scratch, streaming_, task.carried->crop());
}

bool Engine::decode_carried(Task& task, WorkerScratch& scratch) {
  if (!task.decodes_carried) return false;
  const CarriedChunk& chunk = *task.carried;
  uint8_t* bytes = nullptr;
  Bytes whole;  // of a chunk that is cropped
  if (task.status == ReadStatus::kMissing) {
    stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
  } else {
    CarryMemory& memory = chunk.memory();
    bytes = memory.acquire(task.field, chunk.crop_room());
    if (bytes == nullptr) {
      resume(CarriedChunk::give_up(task));
      return false;
    }
    try {
      name_errors(task, [&] { whole = decode_to(task, bytes, scratch); });
    } catch (...) {
      memory.release(task.field, bytes, chunk.crop_room());
      throw;
    }
  }
  resume(CarriedChunk::finish(task, bytes));
  if (whole.empty()) {
    scatter_carried(task, scratch);
  } else {
    scatter_rows(task, whole.data(), scratch, streaming_);
  }
  return true;
}

Bytes Engine::decode_to(const Task& task, uint8_t* out, WorkerScratch& scratch) {
  const FieldDecoder& field = field_of(task);
  const ChunkCrop* const crop = task.carried->crop();
  if (crop == nullptr) {
    field.decode_into(task.stored, {out, field.decoded_bytes()}, scratch, stats_);
    return {};
  }
  const Bytes whole = field.decode_in_scratch(task.stored, scratch, stats_);
  const StageTimer timer(stats_.scatter_ns);
  copy_crop(field.spec().array, *crop, whole.data(), out);
  return whole;
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
