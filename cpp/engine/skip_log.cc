#include "engine/skip_log.h"

#include <algorithm>
#include <utility>

namespace zarrfeed {

void SkipLog::add(const Placement& sample, const SkippedChunk& chunk) {
  auto& [slots, chunks] = batches_[sample.step / batch_size_];
  slots.push_back({sample.step % batch_size_, sample.sample});
  if (chunks.empty() || chunks.back().key != chunk.key || chunks.back().field != chunk.field) chunks.push_back(chunk);
}

Skipped SkipLog::take(int64_t batch) {
  if (batches_.empty()) return {};
  auto node = batches_.extract(batch);
  if (!node) return {};
  Skipped skipped = std::move(node.mapped());
  std::vector<SkippedSlot>& slots = skipped.slots;
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return skipped;
}

}  // namespace zarrfeed
