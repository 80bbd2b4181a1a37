#pragma once
// The seam: every byte of a store comes through a ByteStore.
//
// A ByteStore holds the stored objects of one array, each named by its key below the array. ChunkReader asks it for bytes;
// whoever adds a kind of store writes one of these and nothing else. Invariants of every ByteStore:
//   * Thread-safe: any thread may call try_read() and read() between open() and stop().
//   * try_read() never waits for a device, a network or another thread's wait for one. It returns kWouldBlock instead.
//   * read() completes each of its requests exactly once, on any thread, perhaps before read() returns. It holds no lock
//     of its own meanwhile, so that a completion may call read() again. If read() throws, it completes none of them.
//   * After stop() has returned, no request completes any more: those that were under way are dropped.
//   * A store of which stop() returned false has a thread in it that storage does not let go. It is never used again; the
//     thread holds what it uses, the store and the request included.
//   * An object that is not there is kMissing, and that is all that kMissing says. Storage that cannot be reached, an
//     array that was deleted and an object that may not be read are errors.
//   * Errors: Error(kIo) with an errno if the store could not be read, of which is_transient() (retry.h) says whether
//     a retry may succeed; Error(kCorrupt) for a part that the object does not have. Without the array and the key:
//     ChunkReader adds those.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/stored_bytes.h"
#include "storage/access/coalesce.h"
#include "storage/access/undecoded_chunk.h"

namespace zarrfeed {

enum class ReadStatus {
  kOk,
  kMissing,     ///< no such object
  kWouldBlock,  ///< of try_read() alone: not to be had without waiting
  kChanged,     ///< another version of the object than the one that a part was wanted of
};

/// The identity of a file's content: it differs if the file was replaced or written to.
struct ObjectVersion {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
  uint64_t size = 0;

  bool operator==(const ObjectVersion&) const = default;
};

/// The bytes of an object that are read: all of them unless told. If `parts` is not null, those that it finds of these
/// bytes are enough: a store that can (Limits::part_costs) reads no others, and says so in ReadResult::parts.
struct ByteRange {
  enum class Kind { kAll, kAt, kLast };

  ByteRange() = default;
  explicit ByteRange(Kind which, uint64_t from = 0, uint64_t bytes = 0, std::optional<ObjectVersion> of = {},
                     std::shared_ptr<const ChunkParts> enough = {})
      : kind(which), offset(from), size(bytes), version(of), parts(std::move(enough)) {}

  /// All bytes, of which `parts` may be enough.
  static ByteRange all(std::shared_ptr<const ChunkParts> parts) {
    return ByteRange(Kind::kAll, 0, 0, {}, std::move(parts));
  }
  /// `size` bytes from `offset`; of that version of the object alone, if one is given.
  static ByteRange at(uint64_t offset, uint64_t size, std::optional<ObjectVersion> version = {}) {
    return ByteRange(Kind::kAt, offset, size, version);
  }
  static ByteRange last(uint64_t size) { return ByteRange(Kind::kLast, 0, size); }
  /// The same bytes, which are the index of a shard, and no chunk.
  [[nodiscard]] ByteRange as_index() const {
    ByteRange index = *this;
    index.is_index = true;
    return index;
  }

  Kind kind = Kind::kAll;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::optional<ObjectVersion> version{};
  std::shared_ptr<const ChunkParts> parts{};
  bool is_index = false;  ///< these bytes are the index of a shard, and no chunk
};

/// The result of a read.
struct ReadResult {
  ReadStatus status = ReadStatus::kMissing;     ///< says nothing where there is an error
  Bytes bytes{};                                ///< kOk: what was read; valid as long as the room and `hold`
  std::shared_ptr<const StoredParts> parts{};   ///< kOk: which parts of the range were read; null: all of it
  std::optional<uint64_t> object_bytes{};       ///< kOk: size of the whole object, where the store knows it
  std::optional<ObjectVersion> version{};       ///< kOk: where the store tells versions apart
  std::shared_ptr<const void> hold{};           ///< lets go of memory of the store's own in which `bytes` lie
  std::shared_ptr<UndecodedChunk> undecoded{};  ///< kOk: makes of `bytes` the chunk that is wanted; null: they are it
  std::optional<Error> error{};                 ///< why there is nothing
};

using Completion = std::function<void(ReadResult)>;

struct ReadRequest {
  std::string key;
  ByteRange range{};
  std::optional<size_t>
      inner_chunk{};       ///< which chunk of the shard `key`, in C order: ShardReader finds its range, and
                           ///< below it, this is a name
  Buffer* room = nullptr;  ///< memory for a store without memory of its own; `done` keeps it alive
  Completion done;
};

/// The purpose of a request, to name it.
struct Asked {
  std::string key;
  std::optional<size_t> inner_chunk{};
  bool is_index = false;
};

class ByteStore {
 public:
  struct Limits {
    size_t requests = 1;            ///< worthwhile at once; 0: read() waits for storage on the thread that calls it
    const void* pool = nullptr;     ///< stores of one pool share that limit; null: the store has it for itself
    bool can_try = true;            ///< false: try_read() never has anything
    bool has_some_at_hand = false;  ///< is_at_hand() says of which objects try_read() has something
    bool needs_room = true;         ///< false: bytes lie in memory of the store's own
    Coalesce coalesce{};            ///< the ranges of one object that come in one read() are read together
    PartCosts part_costs{};         ///< when ByteRange::parts are of use; never, unless told
    bool retries = false;           ///< its errors are final: it retried where a retry may succeed
  };

  ByteStore() = default;
  virtual ~ByteStore() = default;
  ByteStore(const ByteStore&) = delete;
  ByteStore& operator=(const ByteStore&) = delete;

  /// Begins an epoch; no other call is under way. Throws Error(kIo) if the array is gone.
  virtual void open() {}
  /// Reads what can be had without waiting: to `room`, or from memory of the store's own. May throw an Error as
  /// well as return it.
  virtual ReadResult try_read(const std::string& key, const ByteRange& range, Buffer& room) = 0;
  /// True if try_read() is worthwhile. Other objects are better asked for by read(), many at once. Never waits.
  [[nodiscard]] virtual bool is_at_hand(const std::string& /*key*/, const ByteRange& /*range*/) const {
    return limits().can_try;
  }
  /// True if one request may read several objects, since they are ranges of files.
  [[nodiscard]] virtual bool has_neighbours() const { return false; }
  /// True if one request may read both of these objects, or ranges of them, where they are asked for together.
  [[nodiscard]] virtual bool are_near(const std::string& one, const std::string& other) const { return one == other; }
  /// Reads. Requests that come together may be served together.
  virtual void read(std::vector<ReadRequest> requests) = 0;
  /// The oldest request of read() that waits for storage, where the store knows.
  [[nodiscard]] virtual std::optional<Asked> oldest() const { return std::nullopt; }
  /// The abilities of the store; the same as long as it lives.
  [[nodiscard]] virtual Limits limits() const = 0;
  /// Ends an epoch: drops what is under way and waits at most until `deadline` for storage. False if a thread had to be
  /// left behind.
  virtual bool stop(std::chrono::steady_clock::time_point deadline) = 0;
  /// Lets go of what open() took, after stop(). Not if any thread was left behind, in try_read() neither.
  virtual void close() {}
};

/// Throws Error(kCorrupt) if a stored object of `size` bytes is too large to be a chunk of at most `max_bytes`.
void check_stored_size(size_t size, size_t max_bytes);

}  // namespace zarrfeed
