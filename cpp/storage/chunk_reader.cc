#include "storage/chunk_reader.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <string>
#include <utility>

#include "spec/chunk_grid.h"
#include "storage/access/retry.h"
#include "storage/chunk_key.h"

namespace zarrfeed {

ChunkReader::ChunkReader(ArraySpec array, std::shared_ptr<ByteStore> store, std::shared_ptr<IoThreads> io,
                         size_t max_chunk_bytes, ReadPolicy policy, std::atomic<uint64_t>* retries)
    : array_(std::move(array)),
      cells_(array_),
      io_(std::move(io)),
      max_chunk_bytes_(max_chunk_bytes),
      policy_(policy),
      shards_(array_.shard.is_sharded()
                  ? std::make_shared<ShardReader>(
                        store, array_.shard, array_.max_stored_bytes != 0 ? array_.max_stored_bytes : max_chunk_bytes)
                  : nullptr),
      store_(shards_ ? shards_ : std::move(store)),
      limits_(store_->limits()),
      retries_(retries) {}

void ChunkReader::open(bool keep_indices) {
  if (shards_ && !keep_indices) shards_->clear();
  store_->open();
}

bool ChunkReader::stop(Clock::time_point deadline) {
  cancel();
  const bool all_ended = store_->stop(deadline) && io_->stop(deadline);
  std::map<uint64_t, PendingPtr> dropped;  // holds what the requests hold: let go of without the lock
  const std::lock_guard lock(mutex_);
  dropped.swap(pending_);
  return all_ended;
}

ChunkLocation ChunkReader::locate(int64_t chunk, size_t cell) const {
  const auto sample_axis = static_cast<size_t>(array_.sample_axis);
  std::optional<size_t> part;
  if (array_.parts != nullptr) {
    part = array_.parts->part_of(chunk);
    chunk -= array_.parts->first_chunk[*part];
  }
  const auto index = [&](size_t axis) { return axis == sample_axis ? chunk : cells_.index(cell, axis); };
  std::string key = chunk_key(array_, index);
  if (part) key.insert(0, array_.parts->prefix[*part]);
  return {std::move(key), position_in_shard(array_, index), part};
}

std::string ChunkReader::key_in_array(const ChunkLocation& at) const {
  return at.part ? at.key.substr(array_.parts->prefix[*at.part].size()) : at.key;
}

std::string ChunkReader::label(const ChunkLocation& at) const {
  return key_in_array(at) + (at.inner_chunk ? " inner chunk " + inner_chunk_name(array_.shard, *at.inner_chunk) : "");
}

bool ChunkReader::may_pass(const Error& error) const {
  return !limits_.retries && error.kind() == ErrorKind::kIo && is_transient(error.errno_value());
}

void ChunkReader::check_size(const ChunkLocation& at, const ReadResult& result) const {
  if (result.status != ReadStatus::kOk) return;
  try {
    check_stored_size(result.bytes.size(), max_chunk_bytes_);
  } catch (const Error& error) {
    throw error.at(name(at), label(at));
  }
}

ReadResult ChunkReader::try_read(const ChunkLocation& at, Buffer& room,
                                 const std::shared_ptr<const ChunkParts>& parts) {
  ReadResult result;
  try {
    result = shards_ ? shards_->try_read(at.key, *at.inner_chunk, room, parts)
                     : store_->try_read(at.key, ByteRange::all(parts), room);
    if (result.error) throw *result.error;
  } catch (const Error& error) {
    if (may_pass(error)) return {.status = ReadStatus::kWouldBlock};  // tried again where it may take time
    throw named(error, at);
  }
  check_size(at, result);
  return result;
}

void ChunkReader::read(std::vector<ChunkRequest> requests) {
  std::vector<ReadRequest> wanted;
  wanted.reserve(requests.size());
  const auto now = Clock::now();
  {
    const std::lock_guard lock(mutex_);
    for (ChunkRequest& request : requests) {
      const auto pending = std::make_shared<Pending>(Pending{++last_number_, std::move(request), now});
      pending_.emplace(pending->number, pending);
      wanted.push_back(request_for(pending));
    }
  }
  store_->read(std::move(wanted));
}

ReadRequest ChunkReader::request_for(const PendingPtr& pending) {
  return {
      .key = pending->request.at.key,
      .range = ByteRange::all(pending->request.parts),
      .inner_chunk = pending->request.at.inner_chunk,
      .room = pending->request.room,
      .done = [self = shared_from_this(), pending](ReadResult result) { self->settle(pending, std::move(result)); }};
}

std::optional<ChunkReader::Clock::time_point> ChunkReader::next_try(const Error& error, size_t tries,
                                                                    Clock::time_point since) const {
  if (!may_pass(error) || tries == policy_.max_retries) return std::nullopt;
  const auto time = Clock::now() + pause_after(tries);
  if (time - since >= policy_.timeout) return std::nullopt;
  return time;
}

void ChunkReader::settle(const PendingPtr& pending, ReadResult result) {
  if (result.error) {
    if (const auto time = next_try(*result.error, pending->tries, pending->since)) {
      ++pending->tries;
      const auto again = [self = shared_from_this(), pending] {
        self->count_retry();
        try {
          std::vector<ReadRequest> one;
          one.push_back(self->request_for(pending));
          self->store_->read(std::move(one));
        } catch (const Error& error) {
          self->end(pending, {.error = self->named(error, pending->request.at)});
        }
      };
      try {
        io_->post_at(*time, again);
        return;
      } catch (const Error&) {
        // No thread for another try: the error stays.
      }
    }
    result.error = named(*result.error, pending->request.at);
  } else {
    try {
      check_size(pending->request.at, result);
    } catch (const Error& error) {
      result.error = error;
    }
  }
  end(pending, std::move(result));
}

void ChunkReader::end(const PendingPtr& pending, ReadResult result) {
  {
    const std::lock_guard lock(mutex_);
    pending_.erase(pending->number);
    answered_ = Clock::now();
  }
  pending->request.done(std::move(result));
}

template <typename Begin>
ReadResult ChunkReader::wait_here(const Begin& begin, StallWatch& watch, StallWatch::Wait wait) {
  /// The outcome of the read that the thread waits for. Held by the completion: the thread may be left behind.
  struct Outcome {
    std::mutex mutex;
    std::condition_variable settled;
    std::optional<ReadResult> result;
  };
  wait.since = Clock::now();
  for (size_t tries = 0;; ++tries) {
    ReadResult result = watch_storage(watch, wait, [&] {
      const auto outcome = std::make_shared<Outcome>();
      begin([outcome](ReadResult got) {
        const std::lock_guard lock(outcome->mutex);
        outcome->result = std::move(got);
        outcome->settled.notify_one();
      });
      std::unique_lock lock(outcome->mutex);
      outcome->settled.wait(lock, [&] { return outcome->result.has_value(); });
      return std::move(*outcome->result);
    });
    if (!result.error) return result;
    const auto time = next_try(*result.error, tries, wait.since);
    if (!time || !io_->sleep_until(*time)) throw *result.error;
    count_retry();
  }
}

ReadResult ChunkReader::read_here(const ChunkLocation& at, Buffer& room, StallWatch& watch, StallWatch::Wait wait,
                                  const std::shared_ptr<const ChunkParts>& parts) {
  const auto begin = [&](Completion done) {
    std::vector<ReadRequest> one;
    one.push_back({.key = at.key,
                   .range = ByteRange::all(parts),
                   .inner_chunk = at.inner_chunk,
                   .room = &room,
                   .done = std::move(done)});
    store_->read(std::move(one));
  };
  ReadResult result;
  try {
    result = wait_here(begin, watch, wait);
  } catch (const Error& error) {
    throw named(error, at);
  }
  check_size(at, result);
  return result;
}

ReadResult ChunkReader::read_here(const ChunkLocation& at, Buffer& room) {
  StallWatch watch;
  return read_here(at, room, watch, {});
}

bool ChunkReader::has_shard(const ChunkLocation& at, StallWatch& watch, StallWatch::Wait wait) {
  const auto begin = [&](Completion done) { shards_->find(at.key, std::move(done)); };
  try {
    return wait_here(begin, watch, wait).status == ReadStatus::kOk;
  } catch (const Error& error) {
    throw named(error, at);
  }
}

std::optional<Error> ChunkReader::find_overdue(Clock::time_point now) {
  ChunkLocation at;
  {
    const std::lock_guard lock(mutex_);
    if (pending_.empty()) return std::nullopt;
    if (const uint64_t indices = indices_read(); indices != indices_seen_) {
      indices_seen_ = indices;
      answered_ = now;
    }
    const Pending& oldest = *pending_.begin()->second;
    if (now - std::max(oldest.since, answered_) < policy_.timeout) return std::nullopt;
    at = oldest.request.at;
  }
  if (const auto asked = store_->oldest()) {
    at = {asked->key, asked->inner_chunk};
    if (array_.parts != nullptr) at.part = array_.parts->part_of_key(at.key);
    if (asked->is_index) return named(timed_out().in("shard index"), at);
  }
  return overdue(at);
}

std::optional<Error> ChunkReader::find_overdue(int64_t chunk, size_t cell, Clock::time_point since,
                                               Clock::time_point now) const {
  if (now - since < policy_.timeout) return std::nullopt;
  return overdue(locate(chunk, cell));
}

Error ChunkReader::overdue(const ChunkLocation& at) const {
  return timed_out().at(name(at), label(at));
}

Error ChunkReader::timed_out() const {
  const auto seconds = std::chrono::duration_cast<std::chrono::duration<double>>(policy_.timeout).count();
  std::array<char, 32> text{};  // no stream: with the streams come all locales, a tenth of the extension
  std::snprintf(text.data(), text.size(), "%g", seconds);
  return Error::io(std::string("the store did not answer within ") + text.data() + " s (timeout)", ETIMEDOUT);
}

}  // namespace zarrfeed
