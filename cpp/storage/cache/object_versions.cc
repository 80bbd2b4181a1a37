#include "storage/cache/object_versions.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "storage/cache/cache_entry.h"

namespace zarrfeed {

std::string version_text(const ObjectVersion& version) {
  constexpr int64_t kSecond = 1'000'000'000;
  return "file " + std::to_string(version.inode) + " " +
         std::to_string(version.seconds * kSecond + version.nanoseconds) + " " + std::to_string(version.size);
}

ObjectVersions::ObjectVersions(const std::vector<std::pair<std::string, std::string>>& listed) {
  std::vector<Listed> all;
  all.reserve(listed.size());
  for (const auto& [key, version] : listed) all.push_back({hash_text(key, 3), hash_text(version, 4)});
  std::sort(all.begin(), all.end(), [](const Listed& a, const Listed& b) { return a.key < b.key; });
  for (size_t i = 0; i < all.size();) {
    size_t end = i + 1;
    while (end < all.size() && all[end].key == all[i].key) ++end;
    if (end == i + 1) listed_.push_back(all[i]);
    i = end;
  }
}

std::optional<std::string> ObjectVersions::find(const std::string& key) const {
  if (common_) return common_;
  const uint64_t hash = hash_text(key, 3);
  const auto found = std::lower_bound(listed_.begin(), listed_.end(), hash,
                                      [](const Listed& one, uint64_t wanted) { return one.key < wanted; });
  if (found == listed_.end() || found->key != hash) return std::nullopt;
  return hex_of(found->version);
}

bool ObjectVersions::agrees(const std::string& key, const ObjectVersion& read) const {
  if (common_) return true;
  const auto listed = find(key);
  return !listed || *listed == hex_of(hash_text(version_text(read), 4));
}

std::pair<std::optional<std::string>, std::string> ObjectVersions::parts() const {
  std::string bytes(listed_.size() * sizeof(Listed), '\0');
  if (!listed_.empty()) std::memcpy(bytes.data(), listed_.data(), bytes.size());
  return {common_, bytes};
}

ObjectVersions ObjectVersions::of_parts(std::optional<std::string> common, const std::string& listed) {
  ObjectVersions versions;
  versions.common_ = std::move(common);
  versions.listed_.resize(listed.size() / sizeof(Listed));
  if (versions.listed_.size() * sizeof(Listed) != listed.size()) {
    throw Error(ErrorKind::kConfig, "these are no versions of objects");
  }
  if (!listed.empty()) std::memcpy(versions.listed_.data(), listed.data(), listed.size());
  return versions;
}

}  // namespace zarrfeed
