#pragma once
// The version of each object of a store, which the node cache needs to know before it may serve stored bytes.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/access/byte_store.h"

namespace zarrfeed {

/// The version of a file, as a list of versions has it: inode, nanoseconds of the last change, and size. The device is left
/// out, since its number differs between the machines that mount it.
std::string version_text(const ObjectVersion& version);

/// Versions by the key below the array: one for all objects, or one for each object that was listed. 16 bytes an object:
/// hashes of the key and of the version. Objects whose keys have the same hash have no version, so hashes cause no mistake
/// but a miss. Made once, and then read by any thread.
class ObjectVersions {
 public:
  /// One version for every object, such as the id of a snapshot.
  explicit ObjectVersions(std::string common) : common_(std::move(common)) {}
  /// A listing: key and version of each object. An object that is not listed has no version.
  explicit ObjectVersions(const std::vector<std::pair<std::string, std::string>>& listed);

  /// The version of an object; nothing if it is not known, so that the object must not be cached.
  [[nodiscard]] std::optional<std::string> find(const std::string& key) const;

  /// True if an object that was read is the one that was listed. The user answers for one version of all objects.
  [[nodiscard]] bool agrees(const std::string& key, const ObjectVersion& read) const;

  /// The common version and the bytes of the list: for another process.
  [[nodiscard]] std::pair<std::optional<std::string>, std::string> parts() const;
  /// Makes versions of the parts that another ObjectVersions gave. Throws Error(kConfig) if it cannot have given them.
  static ObjectVersions of_parts(std::optional<std::string> common, const std::string& listed);

  [[nodiscard]] size_t size() const { return listed_.size(); }

 private:
  /// Hashes of an object's key and version.
  struct Listed {
    uint64_t key = 0;
    uint64_t version = 0;
  };

  ObjectVersions() = default;

  std::optional<std::string> common_;
  std::vector<Listed> listed_;  ///< sorted by key
};

}  // namespace zarrfeed
