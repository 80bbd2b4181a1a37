#pragma once
// The node cache: a ByteStore around another one, which keeps stored bytes in a CacheDirectory.
//
// A hit is read through the page cache by the thread that asks, a hit that is not in the page cache by an I/O thread. A miss
// goes to the inner store. Invariants:
//   * Only an object whose version is known is cached. Any other object is read from the inner store each time.
//   * Of all threads and processes that miss an entry, the one that claims it asks the inner store. The others look again
//     at intervals, and ask the inner store themselves if the entry is not there after kTimeout. Nobody waits without an
//     entry to wait for: where the cache admits nothing, no claim is made.
//   * Lifetime: an answer of the inner store is copied before it is handed on, and the copy is written by an I/O thread. So
//     the inner store may reuse its memory as soon as `hold` is dropped, also while the entry is written. If copies of more
//     than kMaxPendingBytes wait in this process, the thread that completes the read writes its copy itself.
//   * An entry has all of what it is named after. Parts of an object are read from its entry; a miss reads all of it, where
//     it is cached.
//   * An answer never waits for its entry to be written. The claim is held until the entry is there.
//   * Nothing goes wrong because of the cache: an error of the directory is a miss. Errors of reads are those of the inner
//     store.
//   * Where the inner store tells versions, as a FileStore does, an answer of another version than was listed is handed on
//     and not cached, and the object is read from the inner store from then on. A part of it whose byte range may have
//     been looked up in an entry is kChanged, so that ShardReader reads the index anew.
//   * Where chunks are transcoded, an entry holds a Blosc chunk, and its name says so. A miss hands on the stored bytes with
//     an UndecodedChunk, which has the claim: whoever decodes the chunk decodes it there, and keep() has it compressed and
//     written, by spare threads. If decoded chunks of more than kMaxPendingDecoded wait, the thread that calls keep() does
//     it. Indices of shards are kept as they are stored.
//   * After stop() has begun, no request goes to the inner store any more. stop() waits for entries that are being written,
//     at most until its deadline.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "storage/access/byte_store.h"
#include "storage/access/io_threads.h"
#include "storage/cache/cache_directory.h"
#include "storage/cache/object_versions.h"
#include "storage/cache/transcoder.h"

namespace zarrfeed {

/// The name of one array in the cache.
struct CachedArray {
  std::shared_ptr<CacheDirectory> directory;
  std::string store;   ///< the store, see CacheKey
  std::string prefix;  ///< what stands before the array's keys in the store
  std::shared_ptr<const ObjectVersions> versions;
  std::string
      form{};  ///< names codecs, dtype and shape of the chunks that are transcoded; empty: bytes are kept as stored
};

/// Between the key of an object and the form that its transcoded chunks are kept in.
inline constexpr char kBeforeForm = '\x1f';

/// Reads of objects and of their ranges, indices of shards included.
struct CacheCounters {
  std::atomic<uint64_t> hits{0};
  std::atomic<uint64_t> misses{0};
  std::atomic<uint64_t> hit_bytes{0};
  std::atomic<uint64_t> miss_bytes{0};
  std::atomic<uint64_t> unversioned{0};       ///< reads of objects whose version is not known; no misses
  std::atomic<uint64_t> damaged{0};           ///< entries that were damaged; misses, too
  std::atomic<uint64_t> written_bytes{0};     ///< of new entries
  std::atomic<uint64_t> refused{0};           ///< misses that were not cached: the cache is full, or cannot be written
  std::atomic<uint64_t> transcoded{0};        ///< new entries of transcoded chunks
  std::atomic<uint64_t> transcoded_bytes{0};  ///< decoded bytes of these
  std::atomic<uint64_t> transcoded_hits{0};   ///< hits of such entries
};

class NodeCache : public ByteStore, public std::enable_shared_from_this<NodeCache> {
 public:
  /// The timeout of a request that waits for another process to write the entry that it fetches. A process that is
  /// stopped in the middle of a fetch holds up the others no longer than that; less than any timeout of a read.
  static constexpr std::chrono::milliseconds kTimeout{20'000};

  /// `max_bytes`: a larger object is no chunk of this array. `max_reads`: I/O threads at most. `transcoder`: of the array;
  /// null, and only then without a form: bytes are kept as stored.
  NodeCache(std::shared_ptr<ByteStore> inner, CachedArray array, size_t max_bytes, size_t max_reads,
            std::shared_ptr<CacheCounters> counters, std::chrono::milliseconds timeout = kTimeout,
            std::shared_ptr<const Transcoder> transcoder = nullptr);

  void open() override;
  void close() override { inner_->close(); }
  ReadResult try_read(const std::string& key, const ByteRange& range, Buffer& room) override;
  [[nodiscard]] bool is_at_hand(const std::string& key, const ByteRange& range) const override;
  [[nodiscard]] bool has_neighbours() const override { return inner_->has_neighbours(); }
  [[nodiscard]] bool are_near(const std::string& one, const std::string& other) const override {
    return inner_->are_near(one, other);
  }
  void read(std::vector<ReadRequest> requests) override;
  [[nodiscard]] std::optional<Asked> oldest() const override { return inner_->oldest(); }
  [[nodiscard]] Limits limits() const override;
  bool stop(std::chrono::steady_clock::time_point deadline) override;

 private:
  using Clock = std::chrono::steady_clock;
  using EntryPtr = std::shared_ptr<const CacheEntry>;

  /// A request for an entry.
  struct Wanted {
    ReadRequest request;
    EntryPtr entry;
    Clock::time_point since;
    Clock::duration pause;
  };
  using WantedPtr = std::shared_ptr<Wanted>;

  /// A call of the inner store. stop() waits for it.
  class Call;
  /// A chunk that was not in the cache, and is to be transcoded.
  class MissedChunk;
  class WaitingBytes;
  /// Writes an entry, and returns the bytes that it has.
  using WriteEntry = std::function<std::pair<CacheDirectory::Admitted, size_t>()>;

  /// True if these bytes are a chunk that is transcoded.
  [[nodiscard]] bool transcodes(const ByteRange& range) const { return transcoder_ != nullptr && !range.is_index; }
  /// Adds to an answer of the inner store how the chunk is decoded, where it is transcoded, and not kept.
  void mark(const ByteRange& range, ReadResult& result);

  [[nodiscard]] bool has_changed(const std::string& key) const;
  /// True if an answer of the inner store is of the version that was listed. If it is not, the object has changed.
  bool is_listed_version(const std::string& key, const ByteRange& range, ReadResult& result);
  [[nodiscard]] std::optional<CacheEntry> entry_of(const std::string& key, const ByteRange& range) const;
  CacheDirectory::Found look(const CacheEntry& entry, const ByteRange& range, Buffer& room, bool may_wait,
                             ReadResult& result);
  void look_later(const WantedPtr& wanted, Clock::duration pause);
  void look_on_io_thread(const WantedPtr& wanted);
  /// Completes the request of a miss by what another process just wrote, takes it to `missed`, or looks again later.
  void miss(const WantedPtr& wanted, std::vector<ReadRequest>& missed);
  [[nodiscard]] ReadRequest admitting(const WantedPtr& wanted, CacheDirectory::ClaimPtr claim);
  void forward(std::vector<ReadRequest> requests);
  /// Has an entry written by one of `threads`, for which `bytes` are held; by this thread if too many wait.
  void write(IoThreads& threads, WaitingBytes& waiting, size_t bytes, WriteEntry write_entry);
  void count(CacheDirectory::Admitted admitted, size_t bytes);

  const std::shared_ptr<ByteStore> inner_;
  const CachedArray array_;
  const std::shared_ptr<CacheDirectory> directory_;
  const size_t max_bytes_;
  const std::chrono::milliseconds timeout_;
  const Limits inner_limits_;
  const std::shared_ptr<CacheCounters> counters_;
  const std::shared_ptr<const Transcoder> transcoder_;
  IoThreads io_;     ///< reads what is not in the page cache, waits for other processes, writes entries
  IoThreads spare_;  ///< compresses chunks, and writes them

  std::atomic<bool> any_changed_{false};
  mutable std::mutex changed_mutex_;
  std::unordered_set<std::string> changed_keys_;  ///< objects that were found to be of another version

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;  ///< requests may go to the inner store
  size_t calls_ = 0;      ///< of the inner store that are under way
  size_t pending_ = 0;    ///< entries that wait to be written, or are being written
};

}  // namespace zarrfeed
