#pragma once
// One entry of the node cache: what it holds, the name of its file, and the format of the file.
//
// A file is a header, a label and the payload. The label is the key: store, object, range and version. The header has the
// sizes of both, and a crc32c each for itself, the label and the payload. So a file says on its own what it holds, and
// whether it is whole.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/buffer.h"
#include "base/bytes.h"
#include "storage/access/byte_store.h"
#include "storage/access/read_parts.h"

namespace zarrfeed {

/// Folder of all entries.
constexpr const char* kCacheEntries = "entries";

/// Spreads the bits of a number: the finalizer of SplitMix64.
uint64_t mix_bits(uint64_t x);
/// FNV-1a of a text and a seed, with its bits spread.
uint64_t hash_text(std::string_view text, uint64_t seed);
/// 16 hexadecimal digits.
std::string hex_of(uint64_t value);

/// The identity of the bytes that an entry holds.
struct CacheKey {
  std::string store{};    ///< the store: its URL, without credentials
  std::string object{};   ///< key of the object in the store
  std::string version{};  ///< tells the object from what it was before it was written again
  ByteRange range{};      ///< its `version` says nothing here
};

/// A key and where its entry is.
struct CacheEntry {
  explicit CacheEntry(const CacheKey& key);

  std::string label;  ///< the key as the entry's header has it
  std::string path;   ///< below the directory
  std::string store;  ///< name of the store, and the folder of its entries
  std::string folder;
  uint64_t hash = 0;              ///< of `path`
  std::optional<uint64_t> bytes;  ///< size, where the range says it
};

/// The header of an entry, parsed.
struct CacheEntryInfo {
  CacheKey key;
  uint64_t bytes = 0;  ///< of the payload
};

/// The open file of an entry. Every function returns at once if the file is bad.
class CacheEntryFile {
 public:
  enum class Found {
    kHit,
    kMiss,
    kWouldBlock,  ///< the entry is there, but not in the page cache
    kDamaged,     ///< the file is no entry, or was changed
  };

  /// Bytes of the file of an entry.
  static uint64_t size_of(const CacheEntry& entry, size_t payload);
  /// Writes header, label and payload. 0, or the errno.
  static int write(int fd, const CacheEntry& entry, Bytes payload);

  /// Reads header, label and a payload of at most `max_bytes`, which goes to `room`. If `parts` is not null, those of the
  /// payload are enough, and is_intact() must not be called. kMiss if the file holds another version
  /// or cannot be read. kHit says that the sizes and the label are as they must be, and not that the bytes are.
  static Found read(int fd, uint64_t size, const CacheEntry& entry, size_t max_bytes, bool may_wait, Buffer& room,
                    CacheEntryFile& out, const ChunkParts* parts = nullptr);

  /// Checks all checksums.
  [[nodiscard]] bool is_intact() const;
  /// The payload, or parts of it.
  [[nodiscard]] const PartsRead& read() const { return read_; }

 private:
  std::string head_;
  PartsRead read_;
};

/// Reads what the header of the entry in an open file says, and not the payload. Nothing if the file is no entry.
std::optional<CacheEntryInfo> read_cache_entry_info(int fd);

/// Reads the header of the entry in an open file and checks its payload; messages call the file `path`. Throws
/// Error(kCorrupt) if the entry is damaged, or Error(kIo).
CacheEntryInfo check_cache_entry(int fd, const std::string& path);

}  // namespace zarrfeed
