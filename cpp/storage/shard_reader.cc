#include "storage/shard_reader.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "spec/shard_spec.h"

namespace zarrfeed {
namespace {

/// A shard that changes as often as this while one chunk of it is read is not there to be read.
constexpr int kMaxVersions = 8;

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

ShardReader::ShardReader(const FileStore& source, ShardSpec spec, size_t max_chunk_bytes)
    : source_(&source),
      spec_(std::move(spec)),
      max_chunk_bytes_(max_chunk_bytes),
      capacity_(std::max<size_t>(1, spec_.cache_bytes / slot_bytes(spec_))) {}

void ShardReader::clear() {
  slots_.clear();
  recent_.clear();
}

ReadStatus ShardReader::read_cached(const std::string& key, size_t position, Buffer& out, PendingRead& pending) {
  return read<false>(key, position, out, pending);
}

ReadStatus ShardReader::read_blocking(const std::string& key, size_t position, Buffer& out, PendingRead& pending) {
  if (pending.fd >= 0) return source_->read_blocking(key, out, pending);  // finishes what read_cached began
  return read<true>(key, position, out, pending);
}

bool ShardReader::exists(const std::string& key) {
  return find_blocking(key, *slot(key))->index.has_value();
}

template <bool kBlocking>
ReadStatus ShardReader::read(const std::string& key, size_t position, Buffer& out, PendingRead& pending) {
  for (int attempt = 0; attempt < kMaxVersions; ++attempt) {
    const SlotPtr place = slot(key);
    const ShardPtr shard = kBlocking ? find_blocking(key, *place) : find_cached(key, *place);
    if (shard == nullptr) return ReadStatus::kWouldBlock;
    if (!shard->index) return ReadStatus::kMissing;
    const std::optional<ShardRange> range = shard->index->find(position);
    if (!range) return ReadStatus::kMissing;
    try {
      check_stored_size(range->size, max_chunk_bytes_);
      const ByteRange wanted = ByteRange::at(range->offset, range->size, &shard->version);
      const ReadStatus status = kBlocking ? source_->read_blocking(key, out, pending, wanted)
                                          : source_->read_cached(key, out, pending, wanted);
      if (status != ReadStatus::kChanged) return status;
    } catch (const Error& error) {
      throw error.in("inner chunk " + inner_chunk_name(spec_, position));
    }
    drop(key, place);
  }
  throw Error::io("the shard was changed again and again while being read", EIO);
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

ShardReader::ShardPtr ShardReader::find_cached(const std::string& key, Slot& slot) {
  const std::lock_guard lock(slot.mutex);
  if (slot.shard == nullptr && !slot.is_read) slot.shard = load<false>(key);
  return slot.shard;
}

ShardReader::ShardPtr ShardReader::find_blocking(const std::string& key, Slot& slot) {
  std::unique_lock lock(slot.mutex);
  slot.changed.wait(lock, [&] { return !slot.is_read; });
  if (slot.shard != nullptr) return slot.shard;
  slot.is_read = true;
  lock.unlock();
  ShardPtr shard;
  std::exception_ptr error;
  try {
    shard = load<true>(key);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  slot.is_read = false;
  slot.shard = shard;
  lock.unlock();
  slot.changed.notify_all();
  if (error) std::rethrow_exception(error);
  return shard;
}

template <bool kBlocking>
ShardReader::ShardPtr ShardReader::load(const std::string& key) {
  Buffer stored;
  PendingRead pending;
  const size_t size = stored_index_bytes(spec_);
  const ByteRange range = spec_.index_at_start ? ByteRange::at(0, size) : ByteRange::last(size);
  auto shard = std::make_shared<Shard>();
  try {
    const ReadStatus status = kBlocking ? source_->read_blocking(key, stored, pending, range)
                                        : source_->read_cached(key, stored, pending, range);
    if (status == ReadStatus::kWouldBlock) return nullptr;
    if (status == ReadStatus::kMissing) return shard;
    indices_read_.fetch_add(1, std::memory_order_relaxed);
    shard->index.emplace(spec_, Bytes{stored.data(), pending.size}, pending.object_bytes);
  } catch (const Error& error) {
    throw error.in("shard index");
  }
  shard->version = pending.version;
  return shard;
}

}  // namespace zarrfeed
