#include "engine/chunks/group_chunks.h"

#include <memory>

#include "engine/chunks/shared_chunks.h"

namespace zarrfeed {

GroupChunks::GroupChunks(const OutputTable& outputs, size_t carry_bytes) : outputs_(outputs) {
  if (carry_bytes > 0) carried_.emplace(std::make_shared<CarryMemory>(outputs.chunk_bytes(), carry_bytes));
}

void GroupChunks::begin_epoch(const EpochPlan& plan, size_t cache_bytes) {
  plan_ = &plan;
  if (!carried_ || cache_bytes == 0) {
    cached_.reset();
    return;
  }
  if (!cached_ || cached_->max_bytes() != cache_bytes) cached_.emplace(outputs_.chunk_bytes(), cache_bytes);
  cached_->open(plan, outputs_);
}

CarriedChunks GroupChunks::take(size_t group) {
  if (!carried_ || plan_->next_group.empty()) return {};
  return carried_->take(group, plan_->next_group[group], find_shared(*plan_, outputs_, group),
                        cached_ ? cached_->take(group) : CarriedChunks{});
}

void GroupChunks::clear() {
  if (carried_) carried_->clear();
  if (cached_) cached_->clear();
}

size_t GroupChunks::mapped_bytes() const {
  return (carried_ ? carried_->memory().mapped_bytes() : 0) + (cached_ ? cached_->mapped_bytes() : 0);
}

}  // namespace zarrfeed
