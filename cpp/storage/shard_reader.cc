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
      waits_here_(store_->limits().requests == 0) {}

void ShardReader::clear() {
  slots_.clear();
  recent_.clear();
}

ByteStore::Limits ShardReader::limits() const {
  Limits limits = store_->limits();
  if (limits.pool == nullptr) limits.pool = store_.get();
  limits.reads_shards = true;
  return limits;
}

bool ShardReader::stop(std::chrono::steady_clock::time_point deadline) {
  if (!store_->stop(deadline)) return false;
  // What waited for an index that nobody reads any more: the next epoch begins anew.
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

ReadResult ShardReader::try_read(const std::string& key, size_t inner_chunk, Buffer& room) {
  for (int attempt = 0; attempt < kMaxVersions; ++attempt) {
    const SlotPtr place = slot(key);
    const ShardPtr shard = try_find(key, *place);
    if (shard == nullptr) return {.status = ReadStatus::kWouldBlock};
    const std::optional<ShardRange> range = shard->index ? shard->index->find(inner_chunk) : std::nullopt;
    if (!range) return {.status = ReadStatus::kMissing};
    try {
      check_stored_size(range->size, max_chunk_bytes_);
      ReadResult result = store_->try_read(key, ByteRange::at(range->offset, range->size, shard->version), room);
      if (result.error) throw *result.error;
      if (result.status != ReadStatus::kChanged) return result;
    } catch (const Error& error) {
      throw error.in("inner chunk " + inner_chunk_name(spec_, inner_chunk));
    }
    drop(key, place);
  }
  throw changed_too_often();
}

void ShardReader::read(std::vector<ReadRequest> requests) {
  for (ReadRequest& request : requests) {
    read_inner(std::make_shared<Wanted>(Wanted{.request = std::move(request)}));
  }
}

void ShardReader::find(const std::string& key, Completion done) {
  find(key, slot(key), [done = std::move(done)](const ShardPtr& shard, const std::optional<Error>& error) {
    const bool exists = shard != nullptr && shard->index;
    done({.status = exists ? ReadStatus::kOk : ReadStatus::kMissing, .error = error});
  });
}

void ShardReader::read_inner(std::shared_ptr<Wanted> wanted) {
  if (wanted->versions++ == kMaxVersions) {
    wanted->request.done({.error = changed_too_often()});
    return;
  }
  const std::string& key = wanted->request.key;
  const SlotPtr place = slot(key);
  find(key, place,
       [self = shared_from_this(), wanted, place](const ShardPtr& shard, const std::optional<Error>& error) {
         if (error) {
           wanted->request.done({.error = error});
         } else {
           self->read_range(wanted, place, *shard);
         }
       });
}

void ShardReader::read_range(std::shared_ptr<Wanted> wanted, const SlotPtr& place, const Shard& shard) {
  const ReadRequest& request = wanted->request;
  const size_t position = *request.inner_chunk;
  const std::optional<ShardRange> range = shard.index ? shard.index->find(position) : std::nullopt;
  if (!range) {
    request.done({.status = ReadStatus::kMissing});
    return;
  }
  const std::string where = "inner chunk " + inner_chunk_name(spec_, position);
  try {
    check_stored_size(range->size, max_chunk_bytes_);
  } catch (const Error& error) {
    request.done({.error = error.in(where)});
    return;
  }
  std::vector<ReadRequest> parts;
  parts.push_back({.key = request.key,
                   .range = ByteRange::at(range->offset, range->size, shard.version),
                   .room = request.room,
                   .done = [self = shared_from_this(), wanted, place, where](ReadResult result) {
                     if (!result.error && result.status == ReadStatus::kChanged) {
                       self->drop(wanted->request.key, place);
                       self->read_inner(wanted);
                       return;
                     }
                     if (result.error) result.error = result.error->in(where);
                     wanted->request.done(std::move(result));
                   }});
  store_->read(std::move(parts));
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
  return spec_.index_at_start ? ByteRange::at(0, size) : ByteRange::last(size);
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
  if (waits_here_) slot->changed.wait(lock, [&] { return !slot->is_read; });
  if (slot->is_read) {
    // Weak, since this would hold itself.
    slot->waiting.push_back(
        [weak = weak_from_this(), key, use = std::move(use)](const ShardPtr& shard, const std::optional<Error>& error) {
          if (!error) {
            use(shard, error);
          } else if (const auto self = weak.lock()) {
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
