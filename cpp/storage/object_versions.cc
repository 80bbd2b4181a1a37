#include "storage/object_versions.h"

#include <algorithm>

#include "storage/cache_entry.h"

namespace zarrfeed {

ObjectVersions::ObjectVersions(const std::vector<std::pair<std::string, std::string>>& listed) {
  std::vector<std::pair<uint64_t, uint64_t>> all;
  all.reserve(listed.size());
  for (const auto& [key, version] : listed) all.emplace_back(hash_text(key, 3), hash_text(version, 4));
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size();) {
    size_t end = i + 1;
    while (end < all.size() && all[end].first == all[i].first) ++end;
    if (end == i + 1) listed_.push_back(all[i]);
    i = end;
  }
}

std::optional<std::string> ObjectVersions::find(const std::string& key) const {
  if (common_) return common_;
  const uint64_t hash = hash_text(key, 3);
  const auto found = std::lower_bound(listed_.begin(), listed_.end(), std::pair<uint64_t, uint64_t>{hash, 0});
  if (found == listed_.end() || found->first != hash) return std::nullopt;
  return hex_of(found->second);
}

}  // namespace zarrfeed
