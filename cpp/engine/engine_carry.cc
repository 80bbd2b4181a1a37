// How the engine decodes a chunk once for several tasks of a lane: see carried_chunk.h.

#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/carried_chunk.h"
#include "engine/engine.h"

namespace zarrfeed {

CarriedChunks Engine::take_carried(size_t group) {
  const EpochPlan& plan = plan_->plan;
  CarriedChunks of_group;
  if (carry_memory_ == nullptr || plan.carry_begin.empty()) return of_group;
  if (auto node = carried_.extract(group)) of_group = std::move(node.mapped());
  CarriedChunks to_next;
  for (int64_t i = plan.carry_begin[group]; i < plan.carry_begin[group + 1]; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto field = static_cast<size_t>(plan.carry_field[at]);
    for (size_t cell = 0; cell < fields_[field].num_cells(); ++cell) {
      const auto key = std::tuple(field, plan.carry_chunk[at], cell);
      auto& chunk = of_group[key];
      if (chunk == nullptr) chunk = std::make_shared<CarriedChunk>(field, carry_memory_);
      if (plan.carry_on[at] != 0) to_next.emplace(key, chunk);
    }
  }
  if (!to_next.empty()) carried_.emplace(static_cast<size_t>(plan.next_group[group]), std::move(to_next));
  return of_group;
}

void Engine::share_carried(const CarriedChunks& chunks, std::span<Task> tasks) {
  if (chunks.empty()) return;
  for (Task& task : tasks) {
    const auto place = chunks.find(std::tuple(task.field, task.chunk, task.cell));
    if (place != chunks.end()) task.carried = place->second;
  }
}

bool Engine::waits_for_carried(Task& task) {
  if (task.carried == nullptr || task.decodes_carried) return false;
  const std::shared_ptr<CarriedChunk> chunk = std::move(task.carried);
  const std::lock_guard lock(chunk->mutex);
  if (chunk->state == CarriedChunk::State::kDecoding) {
    chunk->waiting.push_back(std::move(task));
    return true;
  }
  if (chunk->state == CarriedChunk::State::kIdle) {
    chunk->state = CarriedChunk::State::kDecoding;
    task.decodes_carried = true;
  }
  task.carried = chunk;
  return false;
}

void Engine::scatter_carried(Task& task, WorkerScratch& scratch) {
  const StageTimer timer(stats_.scatter_ns);
  const FieldDecoder& field = field_of(task);
  find_targets(task, scratch.targets);
  if (task.carried->bytes == nullptr) {
    field.scatter_fill(task.cell, scratch.targets);
  } else {
    field.scatter_decoded(task.chunk, task.cell, task.carried->bytes, scratch.targets, stats_, streaming_);
  }
}

bool Engine::decode_carried(Task& task, WorkerScratch& scratch) {
  if (!task.decodes_carried) return false;
  if (task.status == ReadStatus::kMissing) {
    stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
  } else {
    const FieldDecoder& field = field_of(task);
    uint8_t* const room = carry_memory_->acquire(task.field);
    if (room == nullptr) {
      end_carried(task, false);
      return false;
    }
    try {
      name_errors(task, [&] { field.decode_into(task.stored, {room, field.decoded_bytes()}, scratch, stats_); });
    } catch (...) {
      carry_memory_->release(task.field, room);
      throw;
    }
    task.carried->bytes = room;
  }
  end_carried(task, true);
  scatter_carried(task, scratch);
  return true;
}

void Engine::end_carried(Task& task, bool is_ready) {
  if (!task.decodes_carried) return;
  task.decodes_carried = false;
  CarriedChunk& chunk = *task.carried;
  std::vector<Task> waiting;
  {
    const std::lock_guard lock(chunk.mutex);
    chunk.state = is_ready ? CarriedChunk::State::kReady : CarriedChunk::State::kIdle;
    waiting.swap(chunk.waiting);
  }
  if (waiting.empty()) return;
  for (Task& other : waiting) other.carried = task.carried;
  {
    const std::lock_guard lock(mutex_);
    tasks_.insert(tasks_.begin(), std::make_move_iterator(waiting.begin()), std::make_move_iterator(waiting.end()));
  }
  work_cv_.notify_all();
}

}  // namespace zarrfeed
