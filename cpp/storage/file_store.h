#pragma once
// Chunk files of one array below a local directory: the ByteStore of local stores.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "codecs/codec.h"
#include "storage/access/byte_store.h"
#include "storage/access/io_threads.h"
#include "storage/access/read_parts.h"

namespace zarrfeed {

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
  const uint8_t* memory = nullptr;  ///< the bytes of a store that has them in memory, in place of a file
  uint64_t offset = 0;              ///< in the file, of what is wanted
  uint64_t end = UINT64_MAX;        ///< in the file, of the object: zeros are read behind it
  size_t size = 0;                  ///< of what is wanted
  size_t done = 0;
  uint64_t object_bytes = 0;
  ObjectVersion version;
  PartsRead read;  ///< what is in memory, once all was read
};

class FileStore : public ByteStore, public std::enable_shared_from_this<FileStore> {
 public:
  /// `max_bytes`: a larger file is refused as no chunk of this array, where all of it is wanted.
  /// read() waits on the threads of `io`; if that is null or has none, on the thread that calls it.
  /// `key_depth`: if it is not 0, keys are paths of files, whose last `key_depth` names are the chunk's key below its
  /// array, and `root` is empty.
  FileStore(std::string root, std::string metadata_key, size_t max_bytes, std::shared_ptr<IoThreads> io = nullptr,
            size_t key_depth = 0);
  ~FileStore() override;

  /// Opens the array's directory anew. Throws Error(kIo) if it, or the array's metadata in it, is gone.
  void open() override;
  void close() override;

  ReadResult try_read(const std::string& key, const ByteRange& range, Buffer& room) override;
  void read(std::vector<ReadRequest> requests) override;
  [[nodiscard]] Limits limits() const override;
  bool stop(std::chrono::steady_clock::time_point deadline) override;

  /// Reads a chunk, or a part of an object, without waiting for the device: from the page cache, or not at all.
  /// On kOk the bytes are pending.read, in the memory of `out`; on kWouldBlock `pending` and `out` say how far it came.
  /// Throws Error(kCorrupt) for a part that the object does not have.
  ReadStatus read_cached(const std::string& key, Buffer& out, PendingRead& pending, const ByteRange& range = {}) const;
  /// Reads it, or finishes what read_cached began.
  ReadStatus read_blocking(const std::string& key, Buffer& out, PendingRead& pending,
                           const ByteRange& range = {}) const;

 protected:
  /// The bytes of an object in an open file.
  struct ObjectExtent {
    uint64_t begin = 0;
    uint64_t bytes = 0;         ///< of the object
    uint64_t end = UINT64_MAX;  ///< of its bytes in the file: zeros follow
  };

  /// Finds an object, opens its file, and says in `pending` what is to be read of it.
  virtual ReadStatus open_chunk(const std::string& key, PendingRead& pending, const ByteRange& range) const;
  /// Opens a regular file below the array's directory, or at an absolute path, and sets `pending.version`. Returns false
  /// if there is no file. Throws Error(kIo).
  bool open_file(const std::string& path, PendingRead& pending) const;
  /// Says in `pending` which bytes of the open file `range` wants of `object`.
  ReadStatus select(PendingRead& pending, const ByteRange& range, const ObjectExtent& object) const;

 private:
  /// Reads the parts of an open chunk that `range` is content with. `may_wait`: also from the device.
  ReadStatus read_open_parts(Buffer& out, PendingRead& pending, const ByteRange& range, bool may_wait) const;
  [[nodiscard]] ReadResult read_or_fail(const ReadRequest& request) const;
  void check_array_exists(const std::string& key = {}) const;
  void check_no_link_to_nothing(const std::string& key) const;

  std::string root_;
  std::string metadata_key_;
  size_t max_bytes_;
  std::shared_ptr<IoThreads> io_;
  const size_t key_depth_;
  int directory_ = -1;
};

}  // namespace zarrfeed
