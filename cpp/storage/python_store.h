#pragma once
// Stores that only Python can talk to, as ByteStores: requests go over a bridge to an event loop of Python's.
//
// Threads here post requests and say when the bytes of an answer are no longer needed. The other side takes both and hands
// back answers, in one of two ways. An event loop watches a pipe, which becomes readable when there is something to take,
// and takes many requests at a time. Or threads of Python's wait for one request each, without the GIL. No thread on this
// side ever waits for the other side.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "storage/access/byte_store.h"

namespace zarrfeed {

/// Bytes that are wanted. Request ids are never used twice in the life of a bridge.
struct FetchPart {
  uint64_t request_id = 0;
  ByteRange range{};
};

/// A request for one object, as Python sees it: for the whole of it, or parts that are read together, in ascending
/// order.
struct FetchRequest {
  size_t source = 0;
  std::string key;               ///< below the array
  bool is_index = false;         ///< the one part is the index of a shard, not a chunk
  std::vector<FetchPart> parts;  ///< at least one
};

/// The bytes of a part, or nothing if there is no such object: of a chunk as stored, or decoded where Python does that.
/// They stay where they are, unchanged, until the request is reported as finished or the epoch was stopped.
struct FetchAnswer {
  uint64_t request_id = 0;
  std::optional<Bytes> bytes;
};

/// The requests that a thread takes at once.
struct TakenRequest {
  FetchRequest request;
  std::vector<uint64_t> finished;  ///< ids of requests whose bytes are no longer needed
  size_t waiting = 0;              ///< requests that nobody has taken yet
};

/// The part that the stores of one engine share: the way to Python and back. Thread-safe.
class StoreBridge : public std::enable_shared_from_this<StoreBridge> {
 public:
  /// Throws Error(kIo) if there is no pipe to be had.
  StoreBridge();
  ~StoreBridge();
  StoreBridge(const StoreBridge&) = delete;
  StoreBridge& operator=(const StoreBridge&) = delete;

  /// Readable while there is something to take. Valid as long as the bridge.
  [[nodiscard]] int descriptor() const { return read_end_; }

  /// Posts requests, which can be taken all together or not yet at all. Neighbours among them that are ranges of one
  /// object become one FetchRequest.
  void post(size_t source, std::vector<ReadRequest> requests);
  /// The oldest request of a source that was not answered.
  [[nodiscard]] std::optional<Asked> oldest(size_t source) const;
  /// Forgets all of it: the epoch is over. No request completes after that.
  void clear();

  /// The other side: moves out all that was posted and finished since the last call, in that order.
  void take(std::vector<FetchRequest>& requests, std::vector<uint64_t>& finished);
  /// The epoch that requests are posted in now, for take_one().
  uint64_t epoch();
  /// The other side: waits for a request of `epoch` and takes it, with all that was finished. Nothing once clear() ended
  /// that epoch.
  std::optional<TakenRequest> take_one(uint64_t epoch);
  /// The other side: hands over the bytes of requests. One that nobody waits for any more is passed over.
  void answer(std::span<const FetchAnswer> answers);
  /// The other side: says that a request cannot be answered, and why: Error(kIo), or Error(kCorrupt) for what was read and
  /// is not what the array's metadata promises. Tries are over by then.
  void refuse(uint64_t request_id, const Error& error);

 private:
  class Call;

  /// A request that was not answered.
  struct Awaited {
    size_t source = 0;
    Asked asked;
    Completion done;
  };

  void finish(uint64_t request_id);
  std::optional<Completion> take_awaited(uint64_t request_id);
  void signal();
  void drain();

  int read_end_ = -1;
  int write_end_ = -1;
  mutable std::mutex mutex_;
  bool signalled_ = false;  ///< there is a byte in the pipe
  uint64_t last_request_id_ = 0;
  uint64_t first_request_id_ = 1;  ///< of this epoch
  uint64_t epoch_ = 0;
  std::deque<FetchRequest> requests_;
  std::condition_variable posted_;  ///< or the epoch is over
  std::vector<uint64_t> finished_;
  std::map<uint64_t, Awaited> awaited_;
  size_t calls_ = 0;  ///< of answer() and refuse() that are under way
  std::condition_variable calls_ended_;
};

/// The chunks of one array, asked for by its number.
class PythonStore : public ByteStore {
 public:
  PythonStore(std::shared_ptr<StoreBridge> bridge, size_t source, size_t max_requests, Coalesce coalesce)
      : bridge_(std::move(bridge)), source_(source), max_requests_(max_requests), coalesce_(coalesce) {}

  ReadResult try_read(const std::string& /*key*/, const ByteRange& /*range*/, Buffer& /*room*/) override {
    return {.status = ReadStatus::kWouldBlock};
  }
  void read(std::vector<ReadRequest> requests) override { bridge_->post(source_, std::move(requests)); }
  [[nodiscard]] std::optional<Asked> oldest() const override { return bridge_->oldest(source_); }
  [[nodiscard]] Limits limits() const override {
    return {.requests = max_requests_,
            .pool = bridge_.get(),
            .can_try = false,
            .needs_room = false,
            .coalesce = coalesce_,
            .retries = true};
  }
  bool stop(std::chrono::steady_clock::time_point /*deadline*/) override {
    bridge_->clear();
    return true;
  }

 private:
  const std::shared_ptr<StoreBridge> bridge_;
  const size_t source_;
  const size_t max_requests_;
  const Coalesce coalesce_;
};

}  // namespace zarrfeed
