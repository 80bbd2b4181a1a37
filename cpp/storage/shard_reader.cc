#include "storage/shard_reader.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>
#include <utility>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "spec/shard_spec.h"

namespace zarrfeed {
namespace {

/// A shard that changes as often as this while one chunk of it is read is not there to be read.
constexpr int kMaxVersions = 8;

Error changed_too_often() {
  return Error::io("the shard was changed again and again while being read", EIO);
}

/// Memory of one slot: the ranges, and what the table needs for it.
size_t slot_bytes(const ShardSpec& spec) {
  return chunks_per_shard(spec) * sizeof(ShardRange) + 512;
}

}  // namespace

std::string inner_chunk_name(const ShardSpec& spec, size_t position) {
  std::string name;
  for (size_t axis = spec.chunks.size(); axis-- > 0;) {
    const auto along = static_cast<size_t>(spec.chunks[axis]);
    name = std::to_string(position % along) + (name.empty() ? "" : "/") + name;
    position /= along;
  }
  return name;
}

ShardReader::ShardReader(std::shared_ptr<ByteStore> store, ShardSpec spec, size_t max_chunk_bytes)
    : store_(std::move(store)),
      spec_(std::move(spec)),
      max_chunk_bytes_(max_chunk_bytes),
      capacity_(std::max<size_t>(1, spec_.cache_bytes / slot_bytes(spec_))),
      limits_(store_->limits()) {}

void ShardReader::clear() {
  slots_.clear();
  recent_.clear();
}

ByteStore::Limits ShardReader::limits() const {
  Limits limits = limits_;
  if (limits.pool == nullptr) limits.pool = store_.get();
  return limits;
}

bool ShardReader::stop(std::chrono::steady_clock::time_point deadline) {
  if (!store_->stop(deadline)) return false;
  // Reads that waited for an index that nobody reads any more: the next epoch begins anew.
  const std::lock_guard lock(mutex_);
  for (auto entry = recent_.begin(); entry != recent_.end();) {
    const auto next = std::next(entry);
    Slot& slot = *entry->second;
    const bool is_idle = [&] {
      const std::lock_guard lock_of_slot(slot.mutex);
      slot.waiting.clear();
      return slot.shard != nullptr && !slot.is_read;
    }();
    if (!is_idle) {
      slots_.erase(entry->first);
      recent_.erase(entry);
    }
    entry = next;
  }
  return true;
}

ReadResult ShardReader::try_read(const std::string& key, size_t inner_chunk, Buffer& room,
                                 std::shared_ptr<const ChunkParts> parts) {
  for (int attempt = 0; attempt < kMaxVersions; ++attempt) {
    const SlotPtr index_slot = slot(key);
    const ShardPtr shard = try_find(key, *index_slot);
    if (shard == nullptr) return {.status = ReadStatus::kWouldBlock};
    const std::optional<ShardRange> range = shard->index ? shard->index->find(inner_chunk) : std::nullopt;
    if (!range) return {.status = ReadStatus::kMissing};
    try {
      check_stored_size(range->size, max_chunk_bytes_);
      ByteRange bytes = ByteRange::at(range->offset, range->size, shard->version);
      bytes.parts = parts;
      ReadResult result = store_->try_read(key, bytes, room);
      if (result.error) throw *result.error;
      if (result.status != ReadStatus::kChanged) return result;
    } catch (const Error& error) {
      throw error.in("inner chunk " + inner_chunk_name(spec_, inner_chunk));
    }
    drop(key, index_slot);
  }
  throw changed_too_often();
}

bool ShardReader::is_at_hand(const std::string& key, size_t inner_chunk) {
  const SlotPtr index_slot = slot(key);
  ShardPtr shard;
  {
    const std::lock_guard lock(index_slot->mutex);
    shard = index_slot->shard;
  }
  if (shard == nullptr) return false;
  const std::optional<ShardRange> range = shard->index ? shard->index->find(inner_chunk) : std::nullopt;
  return !range || store_->is_at_hand(key, ByteRange::at(range->offset, range->size));
}

void ShardReader::Wanted::fail(const Error& error) const {
  for (const ReadRequest& request : requests) request.done({.error = error});
}

void ShardReader::read(std::vector<ReadRequest> requests) {
  if (limits_.coalesce.limit == 0) {
    for (ReadRequest& request : requests) {
      const auto wanted = std::make_shared<Wanted>();
      wanted->requests.push_back(std::move(request));
      read_inner(wanted);
    }
    return;
  }
  std::stable_sort(requests.begin(), requests.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  for (size_t i = 0; i < requests.size();) {
    const auto wanted = std::make_shared<Wanted>();
    do {
      wanted->requests.push_back(std::move(requests[i++]));
    } while (i < requests.size() && requests[i].key == wanted->key());
    read_inner(wanted);
  }
}

void ShardReader::find(const std::string& key, Completion done) {
  find(key, slot(key), [done = std::move(done)](const ShardPtr& shard, const std::optional<Error>& error) {
    const bool exists = shard != nullptr && shard->index;
    done({.status = exists ? ReadStatus::kOk : ReadStatus::kMissing, .error = error});
  });
}

void ShardReader::read_inner(WantedPtr wanted) {
  if (wanted->versions++ == kMaxVersions) {
    wanted->fail(changed_too_often());
    return;
  }
  const SlotPtr index_slot = slot(wanted->key());
  find(wanted->key(), index_slot,
       [self = shared_from_this(), wanted, index_slot](const ShardPtr& shard, const std::optional<Error>& error) {
         if (error) {
           wanted->fail(*error);
         } else {
           self->read_ranges(*wanted, index_slot, *shard);
         }
       });
}

void ShardReader::read_ranges(Wanted& wanted, const SlotPtr& index_slot, const Shard& shard) {
  std::vector<ReadRequest> found;
  found.reserve(wanted.requests.size());
  for (ReadRequest& inner : wanted.requests) {
    const std::optional<ShardRange> range = shard.index ? shard.index->find(*inner.inner_chunk) : std::nullopt;
    if (!range) {
      inner.done({.status = ReadStatus::kMissing});
      continue;
    }
    try {
      check_stored_size(range->size, max_chunk_bytes_);
    } catch (const Error& error) {
      inner.done({.error = error.in("inner chunk " + inner_chunk_name(spec_, *inner.inner_chunk))});
      continue;
    }
    found.push_back(request_for(std::move(inner), ByteRange::at(range->offset, range->size, shard.version),
                                wanted.versions, index_slot));
  }
  read_together(std::move(found));
}

/// Reads ranges of one shard, which may come in any order. Those that are read together ascend.
void ShardReader::read_together(std::vector<ReadRequest> requests) {
  std::stable_sort(requests.begin(), requests.end(),
                   [](const auto& a, const auto& b) { return a.range.offset < b.range.offset; });
  std::vector<Extent> extents;
  extents.reserve(requests.size());
  for (const ReadRequest& request : requests) {
    extents.push_back({request.range.offset, request.range.offset + request.range.size});
  }
  auto from = std::make_move_iterator(requests.begin());
  for (const size_t end : runs_together(extents, limits_.coalesce)) {
    const auto to = std::make_move_iterator(requests.begin() + static_cast<std::ptrdiff_t>(end));
    store_->read(std::vector<ReadRequest>(from, to));
    from = to;
  }
}

/// A request for where an inner chunk lies, which begins again if the shard was replaced after its index was read.
ReadRequest ShardReader::request_for(ReadRequest inner, ByteRange range, int versions, const SlotPtr& index_slot) {
  range.parts = inner.range.parts;
  auto done = [self = shared_from_this(), index_slot, key = inner.key, room = inner.room, position = *inner.inner_chunk,
               parts = range.parts, versions, use = std::move(inner.done)](ReadResult result) mutable {
    if (!result.error && result.status == ReadStatus::kChanged) {
      self->drop(key, index_slot);
      const auto again = std::make_shared<Wanted>();
      again->versions = versions;
      again->requests.push_back(
          {.key = key, .range = ByteRange::all(parts), .inner_chunk = position, .room = room, .done = std::move(use)});
      self->read_inner(again);
      return;
    }
    if (result.error) result.error = result.error->in("inner chunk " + inner_chunk_name(self->spec_, position));
    use(std::move(result));
  };
  return {
      .key = inner.key, .range = range, .inner_chunk = inner.inner_chunk, .room = inner.room, .done = std::move(done)};
}

ShardReader::SlotPtr ShardReader::slot(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto known = slots_.find(key);
  if (known != slots_.end()) {
    recent_.splice(recent_.begin(), recent_, known->second);
    return known->second->second;
  }
  if (recent_.size() >= capacity_) {
    slots_.erase(recent_.back().first);
    recent_.pop_back();  // whoever uses it now holds it
  }
  recent_.emplace_front(key, std::make_shared<Slot>());
  slots_.emplace(key, recent_.begin());
  return recent_.front().second;
}

void ShardReader::drop(const std::string& key, const SlotPtr& slot) {
  const std::lock_guard lock(mutex_);
  const auto known = slots_.find(key);
  if (known == slots_.end() || known->second->second != slot) return;
  recent_.erase(known->second);
  slots_.erase(known);
}

ByteRange ShardReader::index_range() const {
  const size_t size = stored_index_bytes(spec_);
  return (spec_.index_at_start ? ByteRange::at(0, size) : ByteRange::last(size)).as_index();
}

/// Throws Error(kCorrupt) if this is no index.
ShardReader::ShardPtr ShardReader::parse(const ReadResult& stored) {
  auto shard = std::make_shared<Shard>();
  if (stored.status == ReadStatus::kMissing) return shard;
  indices_read_.fetch_add(1, std::memory_order_relaxed);
  shard->index.emplace(spec_, stored.bytes, stored.object_bytes);
  shard->version = stored.version;
  return shard;
}

/// Null if the index is not to be had without waiting.
ShardReader::ShardPtr ShardReader::try_find(const std::string& key, Slot& slot) {
  const std::lock_guard lock(slot.mutex);
  if (slot.shard != nullptr || slot.is_read) return slot.shard;
  try {
    Buffer room;
    const ReadResult stored = store_->try_read(key, index_range(), room);
    if (stored.error) throw *stored.error;
    if (stored.status != ReadStatus::kWouldBlock) slot.shard = parse(stored);
  } catch (const Error& error) {
    throw error.in("shard index");
  }
  return slot.shard;
}

void ShardReader::find(const std::string& key, const SlotPtr& slot, UseShard use) {
  std::unique_lock lock(slot->mutex);
  if (limits_.requests == 0) slot->changed.wait(lock, [&] { return !slot->is_read; });
  if (slot->is_read) {
    // Weak, since this would hold itself.
    slot->waiting.push_back(
        [weak = weak_from_this(), key, use = std::move(use)](const ShardPtr& shard, const std::optional<Error>& error) {
          const auto self = weak.lock();
          if (self == nullptr) return;
          if (!error || self->limits_.retries) {
            use(shard, error);
          } else {
            self->find(key, self->slot(key), use);  // tries anew
          }
        });
    return;
  }
  if (slot->shard != nullptr) {
    const ShardPtr shard = slot->shard;
    lock.unlock();
    use(shard, std::nullopt);
    return;
  }
  slot->is_read = true;
  lock.unlock();
  load(key, slot, std::move(use));
}

void ShardReader::load(const std::string& key, const SlotPtr& slot, UseShard use) {
  const auto room = std::make_shared<Buffer>();
  const auto settle = [self = shared_from_this(), slot, use = std::move(use), room](const ReadResult& stored) {
    ShardPtr shard;
    std::optional<Error> error = stored.error;
    if (!error) {
      try {
        shard = self->parse(stored);
      } catch (const Error& bad) {
        error = bad;
      } catch (const std::bad_alloc&) {
        error = Error::io("no memory for it", ENOMEM);
      }
    }
    if (error) error = error->in("shard index");
    std::deque<UseShard> waiting;
    {
      const std::lock_guard lock(slot->mutex);
      slot->is_read = false;
      slot->shard = shard;
      waiting.swap(slot->waiting);
    }
    slot->changed.notify_all();
    use(shard, error);
    for (const UseShard& other : waiting) other(shard, error);
  };
  std::vector<ReadRequest> requests;
  requests.push_back({.key = key, .range = index_range(), .room = room.get(), .done = settle});
  try {
    store_->read(std::move(requests));
  } catch (const Error& error) {
    settle({.error = error});
  }
}

}  // namespace zarrfeed
