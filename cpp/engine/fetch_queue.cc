#include "engine/fetch_queue.h"

#include <chrono>

namespace zarrfeed {

void FetchQueue::set_sources(std::vector<Source> sources, const std::vector<size_t>& limits) {
  sources_ = std::move(sources);
  pools_.clear();
  for (const size_t limit : limits) pools_.emplace_back().limit = std::max<size_t>(1, limit);
}

void FetchQueue::begin_epoch() {
  for (Pool& pool : pools_) pool.in_flight = 0;
}

void FetchQueue::clear() {
  for (Pool& pool : pools_) pool.waiting.clear();
}

size_t FetchQueue::in_flight() const {
  size_t count = 0;
  for (const Pool& pool : pools_) count += pool.in_flight;
  return count;
}

void FetchQueue::add(Task task, Tasks& fetches) {
  Pool& pool = pools_[sources_[task.source].pool];
  if (pool.has_room()) {
    begin(std::move(task), pool, fetches);
  } else {
    pool.waiting.push_back(std::move(task));
  }
}

void FetchQueue::begin(Task task, Pool& pool, Tasks& fetches) {
  ++pool.in_flight;
  if (sources_[task.source].needs_buffer) {
    if (spare_buffers_.empty()) {
      task.room = std::make_unique<Buffer>();
    } else {
      task.room = std::move(spare_buffers_.back());
      spare_buffers_.pop_back();
    }
  }
  task.is_fetched = true;
  task.asked = std::chrono::steady_clock::now();
  fetches.push_back(std::make_shared<Task>(std::move(task)));
}

void FetchQueue::finish(Task& task) {
  if (task.room != nullptr) spare_buffers_.push_back(std::move(task.room));
  --pools_[sources_[task.source].pool].in_flight;
}

size_t FetchQueue::spare_bytes() const {
  size_t bytes = 0;
  for (const auto& buffer : spare_buffers_) bytes += buffer->capacity();
  return bytes;
}

}  // namespace zarrfeed
