#pragma once
// Which version each object of a store has: what the node cache needs to know before it may serve stored bytes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zarrfeed {

/// Versions by the key below the array: one for all objects, or one for each object that was listed. 16 bytes an object:
/// hashes of the key and of the version. Objects whose keys have the same hash have no version, so hashes cause no mistake
/// but a miss. Made once, and then read by any thread.
class ObjectVersions {
 public:
  /// One version for every object, such as the id of a snapshot.
  explicit ObjectVersions(std::string common) : common_(std::move(common)) {}
  /// What a listing says: key and version of each object. An object that is not listed has no version.
  explicit ObjectVersions(const std::vector<std::pair<std::string, std::string>>& listed);

  /// The version of an object; nothing if it is not known, so that the object must not be cached.
  [[nodiscard]] std::optional<std::string> find(const std::string& key) const;

  [[nodiscard]] size_t size() const { return listed_.size(); }

 private:
  std::optional<std::string> common_;
  std::vector<std::pair<uint64_t, uint64_t>> listed_;  ///< hashes of key and version, sorted by key
};

}  // namespace zarrfeed
