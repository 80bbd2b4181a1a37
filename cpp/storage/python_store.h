#pragma once
// Where the engine asks for chunks that it cannot read itself: those of stores that only Python can talk to.
//
// Engine threads post requests and say when the bytes of an answer are no longer needed. One reader outside of the
// engine, on an event loop, takes both, many at a time, and hands answers to Engine::answer(). A pipe becomes readable when there is
// something to take, so that the reader can watch it in an event loop; no thread of the engine ever waits for it.

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace zarrfeed {

/// A chunk that is wanted. Request ids are never used twice in the life of an engine.
struct FetchRequest {
  uint64_t request_id = 0;
  size_t field = 0;
  std::string key;                      ///< below the array
  std::optional<size_t> position = {};  ///< where `key` is a shard: which of its inner chunks is wanted, in C order
};

/// The bytes of a chunk as stored, or nothing if there is no such chunk. They stay where they are, unchanged, until the
/// request_id is reported as finished or the epoch was stopped.
struct FetchAnswer {
  uint64_t request_id = 0;
  std::optional<Bytes> bytes;
};

/// Thread-safe.
class PythonStore {
 public:
  /// Throws Error(kIo) if there is no pipe to be had.
  PythonStore();
  ~PythonStore();
  PythonStore(const PythonStore&) = delete;
  PythonStore& operator=(const PythonStore&) = delete;

  /// Readable while there is something to take. Valid as long as the store.
  [[nodiscard]] int descriptor() const { return read_end_; }

  /// Posts requests, which can be taken all together or not yet at all.
  void post(std::vector<FetchRequest> requests);
  /// The bytes of the answer to this request are no longer needed.
  void finish(uint64_t request_id);
  /// Moves out all that was posted and finished since the last call, in that order.
  void take(std::vector<FetchRequest>& requests, std::vector<uint64_t>& finished);
  /// Forgets all of it: the epoch is over.
  void clear();

 private:
  void signal();
  void drain();

  int read_end_ = -1;
  int write_end_ = -1;
  std::mutex mutex_;
  bool signalled_ = false;  ///< there is a byte in the pipe
  std::vector<FetchRequest> requests_;
  std::vector<uint64_t> finished_;
};

}  // namespace zarrfeed
