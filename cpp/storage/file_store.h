#pragma once
// Chunk files of one array below a local directory.

#include <memory>
#include <string>

#include "base/buffer.h"
#include "codecs/codec.h"

namespace zarrfeed {

enum class ReadStatus {
  kOk,
  kMissing,     ///< no such chunk: it is the fill value
  kWouldBlock,  ///< not in the page cache; finish with FileStore::read_blocking
  kChanged,     ///< another version of the object than the one that a part was wanted of
};

/// What tells a file from the one that was there before it, or from what it was before it was written to.
struct ObjectVersion {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
  uint64_t size = 0;

  bool operator==(const ObjectVersion&) const = default;
};

/// Which bytes of an object are read: all of them unless told.
struct ByteRange {
  enum class Kind { kAll, kAt, kLast };

  /// `size` bytes from `offset`; of that version of the object alone, if one is given.
  static ByteRange at(uint64_t offset, uint64_t size, const ObjectVersion* version = nullptr) {
    return {Kind::kAt, offset, size, version};
  }
  static ByteRange last(uint64_t size) { return {Kind::kLast, 0, size, nullptr}; }

  Kind kind = Kind::kAll;
  uint64_t offset = 0;
  uint64_t size = 0;
  const ObjectVersion* version = nullptr;  ///< borrowed
};

/// Throws Error(kCorrupt) if a stored object of `size` bytes is too large to be a chunk of at most `max_bytes`.
void check_stored_size(size_t size, size_t max_bytes);

/// A chunk file, or a part of one, that was opened and partly read.
struct PendingRead {
  PendingRead() = default;
  PendingRead(PendingRead&& other) noexcept;
  PendingRead& operator=(PendingRead&& other) noexcept;
  PendingRead(const PendingRead&) = delete;
  PendingRead& operator=(const PendingRead&) = delete;
  ~PendingRead();
  void close();

  int fd = -1;
  uint64_t offset = 0;  ///< in the file, of what is wanted
  size_t size = 0;      ///< of what is wanted
  size_t done = 0;
  uint64_t object_bytes = 0;
  ObjectVersion version;
};

/// Thread-safe but for open() and close().
class FileStore {
 public:
  /// `max_bytes`: a larger file is refused as no chunk of this array, where all of it is wanted.
  FileStore(std::string root, std::string metadata_key, size_t max_bytes);
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  /// Opens the array's directory anew. Throws Error(kIo) if it, or the array's metadata in it, is gone.
  void open();
  void close();

  /// Reads a chunk, or a part of an object, without waiting for the device: from the page cache, or not at all.
  /// On kOk the bytes are out.data()[0, pending.size); on kWouldBlock `pending` and `out` say how far it came.
  /// Throws Error(kCorrupt) for a part that the object does not have.
  ReadStatus read_cached(const std::string& key, Buffer& out, PendingRead& pending, const ByteRange& range = {}) const;
  /// Reads it, or finishes what read_cached began.
  ReadStatus read_blocking(const std::string& key, Buffer& out, PendingRead& pending,
                           const ByteRange& range = {}) const;

 private:
  ReadStatus open_chunk(const std::string& key, Buffer& out, PendingRead& pending, const ByteRange& range) const;
  void check_array_exists() const;
  void check_no_link_to_nothing(const std::string& key) const;

  std::string root_;
  std::string metadata_key_;
  size_t max_bytes_;
  int directory_ = -1;
};

}  // namespace zarrfeed
