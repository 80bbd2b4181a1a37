#include "storage/cache/node_cache.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <thread>
#include <utility>

#include "base/error.h"

namespace zarrfeed {
namespace {

constexpr std::chrono::milliseconds kFirstWait{1}, kLongestWait{16};

/// Limits hold for all arrays of a process together.
constexpr size_t kMaxPendingBytes = size_t{64} << 20;
/// The end of an epoch waits for the chunks that wait to be compressed.
constexpr size_t kMaxPendingDecoded = size_t{16} << 20;

/// A quarter of the cores compresses as fast as the others decode.
size_t num_spare_threads() {
  return std::max<size_t>(1, std::thread::hardware_concurrency() / 4);
}

/// True if a part of an object may have been looked up in an index that the cache has, so that it says nothing of
/// versions.
bool may_come_from_cached_index(const ByteRange& range) {
  return range.kind == ByteRange::Kind::kAt && !range.is_index && !range.version;
}

void add(std::atomic<uint64_t>& counter, uint64_t number = 1) {
  counter.fetch_add(number, std::memory_order_relaxed);
}

}  // namespace

/// Bytes that wait for a thread to write them, of all arrays of a process, up to a limit.
class NodeCache::WaitingBytes {
 public:
  explicit WaitingBytes(size_t limit) : limit_(limit) {}

  /// Counts bytes until the result is dropped; null if the limit has no room for them. Any number may wait alone.
  std::shared_ptr<const void> try_add(size_t bytes) {
    const size_t before = bytes_.fetch_add(bytes);
    std::shared_ptr<const void> counted(this, [this, bytes](const void*) { bytes_ -= bytes; });
    return before == 0 || before + bytes <= limit_ ? counted : nullptr;
  }

 private:
  const size_t limit_;
  std::atomic<size_t> bytes_{0};
};

class NodeCache::Call {
 public:
  explicit Call(NodeCache& cache) : cache_(cache) {
    const std::lock_guard lock(cache_.mutex_);
    may_go_ = cache_.is_open_;
    if (may_go_) ++cache_.calls_;
  }
  ~Call() {
    if (!may_go_) return;
    const std::lock_guard lock(cache_.mutex_);
    if (--cache_.calls_ == 0) cache_.changed_.notify_all();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  [[nodiscard]] bool may_go() const { return may_go_; }

 private:
  NodeCache& cache_;
  bool may_go_ = false;
};

/// Holds the claim until the entry is there. Without an entry, the chunk is decoded, and not kept.
class NodeCache::MissedChunk : public UndecodedChunk {
 public:
  MissedChunk(std::shared_ptr<NodeCache> cache, EntryPtr entry, CacheDirectory::ClaimPtr claim)
      : cache_(std::move(cache)), entry_(std::move(entry)), claim_(std::move(claim)) {}

  Bytes decode(Bytes stored, DecodeScratch& scratch) override {
    plain_ = std::make_shared<const BloscContainer>(cache_->transcoder_->decode(stored, scratch));
    return plain_->bytes();
  }
  void keep() override {
    if (plain_ == nullptr || entry_ == nullptr) return;
    const auto write_entry = [cache = cache_, entry = entry_, claim = claim_, plain = plain_]() {
      const Bytes bytes = cache->transcoder_->compress(*plain).value_or(plain->bytes());
      const auto admitted = cache->directory_->admit(*entry, bytes);
      if (admitted == CacheDirectory::Admitted::kYes) {
        add(cache->counters_->transcoded);
        add(cache->counters_->transcoded_bytes, plain->payload().size());
      }
      return std::pair(admitted, bytes.size());
    };
    static WaitingBytes waiting(kMaxPendingDecoded);
    cache_->write(cache_->spare_, waiting, plain_->size, write_entry);
  }

 private:
  const std::shared_ptr<NodeCache> cache_;
  const EntryPtr entry_;
  const CacheDirectory::ClaimPtr claim_;
  std::shared_ptr<const BloscContainer> plain_;
};

NodeCache::NodeCache(std::shared_ptr<ByteStore> inner, CachedArray array, size_t max_bytes, size_t max_reads,
                     std::shared_ptr<CacheCounters> counters, std::chrono::milliseconds timeout,
                     std::shared_ptr<const Transcoder> transcoder)
    : inner_(std::move(inner)),
      array_(std::move(array)),
      directory_(array_.directory),
      max_bytes_(max_bytes),
      timeout_(timeout),
      inner_limits_(inner_->limits()),
      counters_(std::move(counters)),
      transcoder_(std::move(transcoder)),
      io_(std::max<size_t>(4, max_reads)),
      spare_(num_spare_threads()) {}

void NodeCache::open() {
  inner_->open();
  const std::lock_guard lock(mutex_);
  is_open_ = true;
}

ByteStore::Limits NodeCache::limits() const {
  Limits limits = inner_limits_;
  if (limits.pool == nullptr) limits.pool = inner_.get();
  limits.requests = std::max<size_t>(1, limits.requests);
  limits.has_some_at_hand = true;
  limits.can_try = true;
  limits.needs_room = true;
  limits.part_costs = kLocalPartCosts;
  return limits;
}

bool NodeCache::has_changed(const std::string& key) const {
  if (!any_changed_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(changed_mutex_);
  return changed_keys_.contains(key);
}

bool NodeCache::is_listed_version(const std::string& key, const ByteRange& range, ReadResult& result) {
  if (result.error || result.status != ReadStatus::kOk || !result.version) return true;
  if (array_.versions->agrees(key, *result.version)) return true;
  {
    const std::lock_guard lock(changed_mutex_);
    changed_keys_.insert(key);
  }
  any_changed_.store(true, std::memory_order_release);
  if (may_come_from_cached_index(range)) result = {.status = ReadStatus::kChanged};
  return false;
}

std::optional<CacheEntry> NodeCache::entry_of(const std::string& key, const ByteRange& range) const {
  if (has_changed(key)) return std::nullopt;
  auto version = array_.versions->find(key);
  if (!version) return std::nullopt;
  std::string object = array_.prefix + key;
  if (transcodes(range)) object += kBeforeForm + array_.form;
  CacheEntry entry(
      {.store = array_.store, .object = std::move(object), .version = *std::move(version), .range = range});
  if (transcodes(range)) entry.bytes.reset();
  return entry;
}

void NodeCache::mark(const ByteRange& range, ReadResult& result) {
  if (!transcodes(range) || result.error || result.status != ReadStatus::kOk) return;
  result.undecoded = std::make_shared<MissedChunk>(shared_from_this(), nullptr, nullptr);
}

CacheDirectory::Found NodeCache::look(const CacheEntry& entry, const ByteRange& range, Buffer& room, bool may_wait,
                                      ReadResult& result) {
  using Found = CacheDirectory::Found;
  PartsRead read;
  Found found = Found::kMiss;
  try {
    found = directory_->read(entry, room, max_bytes_, may_wait, read, range.parts.get());
  } catch (const std::bad_alloc&) {  // a miss: the inner store says what memory it lacks
  }
  if (found == Found::kDamaged) {
    add(counters_->damaged);
    return Found::kMiss;
  }
  if (found == Found::kHit) {
    add(counters_->hits);
    add(counters_->hit_bytes, read.bytes.size());
    if (transcodes(range)) add(counters_->transcoded_hits);
    result = {.status = ReadStatus::kOk, .bytes = read.bytes, .parts = std::move(read.parts)};
  }
  return found;
}

ReadResult NodeCache::try_read(const std::string& key, const ByteRange& range, Buffer& room) {
  const auto entry = entry_of(key, range);
  ReadResult result{.status = ReadStatus::kWouldBlock};
  if (entry) {
    look(*entry, range, room, false, result);
  } else if (inner_limits_.can_try && !has_changed(key)) {
    ByteRange wanted = range;
    if (transcodes(range)) wanted.parts.reset();  // of the Blosc chunk
    result = inner_->try_read(key, wanted, room);
    mark(range, result);
    if (result.status != ReadStatus::kWouldBlock) add(counters_->unversioned);
  }
  return result;
}

bool NodeCache::is_at_hand(const std::string& key, const ByteRange& range) const {
  const auto entry = entry_of(key, range);
  return entry ? directory_->contains(*entry) : inner_->is_at_hand(key, range);
}

void NodeCache::read(std::vector<ReadRequest> requests) {
  using Found = CacheDirectory::Found;
  std::vector<ReadRequest> missed;
  for (ReadRequest& request : requests) {
    auto entry = entry_of(request.key, request.range);
    if (!entry) {
      add(counters_->unversioned);
      if (has_changed(request.key) && may_come_from_cached_index(request.range)) {
        request.done({.status = ReadStatus::kChanged});
        continue;
      }
      missed.push_back(std::move(request));
      continue;
    }
    ReadResult result;
    const Found found = look(*entry, request.range, *request.room, false, result);
    if (found == Found::kHit) {
      request.done(std::move(result));
      continue;
    }
    const auto wanted = std::make_shared<Wanted>(
        Wanted{std::move(request), std::make_shared<const CacheEntry>(*std::move(entry)), Clock::now(), kFirstWait});
    if (found == Found::kWouldBlock) {
      look_later(wanted, {});
    } else {
      miss(wanted, missed);
    }
  }
  forward(std::move(missed));
}

void NodeCache::look_later(const WantedPtr& wanted, Clock::duration pause) {
  try {
    if (pause == Clock::duration::zero()) {
      look_on_io_thread(wanted);
    } else {
      io_.post_at(Clock::now() + pause, [self = shared_from_this(), wanted] {
        try {
          self->look_on_io_thread(wanted);
        } catch (const Error& error) {
          wanted->request.done({.error = error});
        }
      });
    }
  } catch (const Error&) {  // no thread to be had
    add(counters_->misses);
    std::vector<ReadRequest> one;
    one.push_back(std::move(wanted->request));
    forward(std::move(one));
  }
}

void NodeCache::look_on_io_thread(const WantedPtr& wanted) {
  struct Outcome {
    CacheDirectory::Found found = CacheDirectory::Found::kMiss;
    ReadResult result;
  };
  const auto outcome = std::make_shared<Outcome>();
  const auto self = shared_from_this();
  io_.post({.in_storage =
                [self, wanted, outcome] {
                  outcome->found =
                      self->look(*wanted->entry, wanted->request.range, *wanted->request.room, true, outcome->result);
                },
            .done =
                [self, wanted, outcome] {
                  if (outcome->found == CacheDirectory::Found::kHit) {
                    wanted->request.done(std::move(outcome->result));
                    return;
                  }
                  std::vector<ReadRequest> missed;
                  self->miss(wanted, missed);
                  self->forward(std::move(missed));
                }});
}

void NodeCache::miss(const WantedPtr& wanted, std::vector<ReadRequest>& missed) {
  using Found = CacheDirectory::Found;
  if (directory_->admits() && Clock::now() - wanted->since < timeout_) {
    CacheDirectory::ClaimPtr claim = directory_->try_claim(*wanted->entry);
    if (claim == nullptr) {
      const auto pause = std::exchange(wanted->pause, std::min<Clock::duration>(2 * wanted->pause, kLongestWait));
      look_later(wanted, pause);
      return;
    }
    // Whoever had the claim before may have written the entry after this request looked for it.
    ReadResult result;
    const Found found = look(*wanted->entry, wanted->request.range, *wanted->request.room, false, result);
    if (found == Found::kHit) {
      claim.reset();
      wanted->request.done(std::move(result));
      return;
    }
    if (found == Found::kWouldBlock) {
      claim.reset();
      look_later(wanted, kFirstWait);
      return;
    }
    add(counters_->misses);
    missed.push_back(admitting(wanted, std::move(claim)));
    return;
  }
  add(counters_->misses);
  add(counters_->refused);
  auto done = [self = shared_from_this(), key = wanted->request.key, range = wanted->request.range,
               done = std::move(wanted->request.done)](ReadResult result) {
    if (!result.error && result.status == ReadStatus::kOk) add(self->counters_->miss_bytes, result.bytes.size());
    self->is_listed_version(key, range, result);
    done(std::move(result));
  };
  missed.push_back(std::move(wanted->request));
  missed.back().done = std::move(done);
}

ReadRequest NodeCache::admitting(const WantedPtr& wanted, CacheDirectory::ClaimPtr claim) {
  ReadRequest request = std::move(wanted->request);
  request.range.parts.reset();  // the entry has all of the object
  request.done = [self = shared_from_this(), entry = wanted->entry, claim = std::move(claim), key = request.key,
                  range = request.range, done = std::move(request.done)](ReadResult result) mutable {
    const bool is_listed = self->is_listed_version(key, range, result);
    const bool is_whole = !result.error && result.status == ReadStatus::kOk && result.bytes.size() <= self->max_bytes_;
    if (!is_listed || !is_whole || (entry->bytes && result.bytes.size() != *entry->bytes)) {
      claim.reset();
      done(std::move(result));
      return;
    }
    add(self->counters_->miss_bytes, result.bytes.size());
    if (self->transcodes(range)) {
      result.undecoded = std::make_shared<MissedChunk>(self, std::move(entry), std::move(claim));
      done(std::move(result));
      return;
    }
    std::shared_ptr<const std::vector<uint8_t>> copy;
    try {
      copy = std::make_shared<const std::vector<uint8_t>>(result.bytes.begin(), result.bytes.end());
    } catch (const std::bad_alloc&) {  // then it is not cached
    }
    done(std::move(result));
    if (copy == nullptr) return;
    const size_t bytes = copy->size();
    static WaitingBytes waiting(kMaxPendingBytes);
    self->write(self->io_, waiting, bytes,
                [directory = self->directory_, entry = std::move(entry), copy = std::move(copy),
                 claim = std::move(claim)] { return std::pair(directory->admit(*entry, *copy), copy->size()); });
  };
  return request;
}

/// Hands requests to the inner store: ranges of one object that are near each other together, as they came, and so whole
/// objects, of which the inner store may know that they are near each other.
void NodeCache::forward(std::vector<ReadRequest> requests) {
  for (ReadRequest& request : requests) {
    if (!transcodes(request.range)) continue;
    request.range.parts.reset();  // of the Blosc chunk
    request.done = [self = shared_from_this(), range = request.range,
                    done = std::move(request.done)](ReadResult result) {
      self->mark(range, result);
      done(std::move(result));
    };
  }
  std::vector<std::vector<ReadRequest>> runs;
  for (size_t begin = 0; begin < requests.size();) {
    const auto is_part = [&](const ReadRequest& one) {
      return one.range.kind == ByteRange::Kind::kAt && !one.range.is_index && one.key == requests[begin].key;
    };
    const auto is_whole = [](const ReadRequest& one) { return one.range.kind == ByteRange::Kind::kAll; };
    size_t end = begin + 1;
    if (is_whole(requests[begin])) {
      auto& together = runs.emplace_back();
      end = static_cast<size_t>(
          std::find_if_not(requests.begin() + static_cast<std::ptrdiff_t>(begin), requests.end(), is_whole) -
          requests.begin());
      for (; begin < end; ++begin) together.push_back(std::move(requests[begin]));
      continue;
    }
    if (is_part(requests[begin])) {
      while (end < requests.size() && is_part(requests[end]) &&
             requests[end].range.offset >= requests[end - 1].range.offset) {
        ++end;
      }
    }
    std::vector<Extent> extents;
    for (size_t i = begin; i < end; ++i) {
      extents.push_back({requests[i].range.offset, requests[i].range.offset + requests[i].range.size});
    }
    size_t first = begin;
    for (const size_t run : runs_together(extents, inner_limits_.coalesce)) {
      auto& together = runs.emplace_back();
      for (; first < begin + run; ++first) together.push_back(std::move(requests[first]));
    }
    begin = end;
  }
  for (auto& run : runs) {
    const Call call(*this);
    if (!call.may_go()) return;
    std::vector<Completion> completions;
    for (const ReadRequest& request : run) completions.push_back(request.done);
    try {
      inner_->read(std::move(run));
    } catch (const Error& error) {
      for (const Completion& done : completions) done({.error = error});
    }
  }
}

void NodeCache::write(IoThreads& threads, WaitingBytes& waiting, size_t bytes, WriteEntry write_entry) {
  if (std::shared_ptr<const void> waits = waiting.try_add(bytes)) {
    {
      const std::lock_guard lock(mutex_);
      ++pending_;
    }
    const auto written = std::make_shared<std::pair<CacheDirectory::Admitted, size_t>>();
    const auto end = [self = shared_from_this()] {
      const std::lock_guard lock(self->mutex_);
      --self->pending_;
      self->changed_.notify_all();
    };
    try {
      threads.post({.in_storage = [written, write_entry] { *written = write_entry(); },
                    .done =
                        [self = shared_from_this(), written, end, waits = std::move(waits)] {
                          self->count(written->first, written->second);
                          end();
                        }});
      return;
    } catch (const Error&) {  // no thread to be had
      end();
    }
  }
  const auto [admitted, size] = write_entry();
  count(admitted, size);
}

void NodeCache::count(CacheDirectory::Admitted admitted, size_t bytes) {
  if (admitted == CacheDirectory::Admitted::kYes) {
    add(counters_->written_bytes, bytes);
  } else {
    add(counters_->refused);
  }
}

bool NodeCache::stop(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  is_open_ = false;
  bool all_ended = changed_.wait_until(lock, deadline, [this] { return calls_ == 0; });
  lock.unlock();
  all_ended = inner_->stop(deadline) && all_ended;
  lock.lock();
  changed_.wait_until(lock, deadline, [this] { return pending_ == 0; });
  lock.unlock();
  all_ended = io_.stop(deadline) && all_ended;
  all_ended = spare_.stop(deadline) && all_ended;
  lock.lock();
  if (all_ended) pending_ = 0;  // of entries that had not been begun
  return all_ended;
}

}  // namespace zarrfeed
