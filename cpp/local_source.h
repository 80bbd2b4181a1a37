#pragma once
// Chunk files of one array below a local directory.

#include <memory>
#include <string>

#include "codecs/codec.h"
#include "types.h"

namespace zarrfeed {

enum class ReadStatus {
  kOk,
  kMissing,     ///< no such chunk: it is the fill value
  kWouldBlock,  ///< not in the page cache; finish with LocalSource::read_blocking
};

/// Throws Error(kCorrupt) if a stored object of `size` bytes is too large to be a chunk of at most `max_bytes`.
void check_stored_size(size_t size, size_t max_bytes);

/// A chunk file that was opened and partly read.
struct PendingRead {
  PendingRead() = default;
  PendingRead(PendingRead&& other) noexcept;
  PendingRead& operator=(PendingRead&& other) noexcept;
  PendingRead(const PendingRead&) = delete;
  PendingRead& operator=(const PendingRead&) = delete;
  ~PendingRead();
  void close();

  int fd = -1;
  size_t size = 0;
  size_t done = 0;
};

/// Thread-safe but for open() and close().
class LocalSource {
 public:
  /// `max_bytes`: a larger file is refused as no chunk of this array.
  LocalSource(std::string root, std::string metadata_key, size_t max_bytes);
  ~LocalSource();
  LocalSource(const LocalSource&) = delete;
  LocalSource& operator=(const LocalSource&) = delete;

  /// Opens the array's directory anew. Throws Error(kIo) if it, or the array's metadata in it, is gone.
  void open();
  void close();

  /// Reads a chunk without waiting for the device: from the page cache, or not at all.
  /// On kOk the bytes are out.data()[0, pending.size); on kWouldBlock `pending` and `out` say how far it came.
  ReadStatus read_cached(const std::string& key, Buffer& out, PendingRead& pending) const;
  /// Reads a chunk, or finishes what read_cached began.
  ReadStatus read_blocking(const std::string& key, Buffer& out, PendingRead& pending) const;

 private:
  ReadStatus open_chunk(const std::string& key, Buffer& out, PendingRead& pending) const;
  void check_array_exists() const;

  std::string root_;
  std::string metadata_key_;
  size_t max_bytes_;
  int directory_ = -1;
};

}  // namespace zarrfeed
