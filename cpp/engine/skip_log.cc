#include "engine/skip_log.h"

#include <algorithm>
#include <utility>

namespace zarrfeed {

void SkipLog::add(const Placement& sample, const SkippedChunk& chunk) {
  auto& [slots, chunks] = batches_[sample.step / batch_size_];
  slots.push_back({sample.step % batch_size_, sample.sample});
  // Not by the key alone, which chunks of several stores share; nor by the number alone, which cells share.
  const auto is_same = [&chunk](const SkippedChunk& last) {
    return last.source == chunk.source && last.chunk == chunk.chunk && last.key == chunk.key;
  };
  if (chunks.empty() || !is_same(chunks.back())) chunks.push_back(chunk);
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
