#include "tools/chunk_checker.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <system_error>
#include <utility>

#include "base/buffer.h"
#include "base/division.h"
#include "codecs/codec_pipeline.h"
#include "spec/chunk_grid.h"
#include "storage/chunk_key.h"
#include "storage/stores.h"

namespace zarrfeed {
namespace {

/// The longest pause between two looks at a thread that takes long.
constexpr std::chrono::milliseconds kLongestPoll{1000};

/// The fault of a chunk, without its name, which the finding has.
Error bare(const Error& error) {
  return error.kind() == ErrorKind::kIo ? Error::io(std::string(error.message()), error.errno_value())
                                        : Error(error.kind(), std::string(error.message()));
}

}  // namespace

/// Chunks [begin, end), and what was found of those before `begin`. Only the thread that checks them writes to it, and only
/// while it is not in storage.
struct ChunkChecker::Job {
  int64_t begin = 0;
  int64_t end = 0;
  ChunkCheck found;
  std::exception_ptr error;
};

/// A thread that checks, and its memory.
struct ChunkChecker::Worker {
  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<Job> job;  ///< what to do; null: nothing
  bool ends = false;
  std::shared_ptr<StallWatch> watch;
  DecodeScratch codecs;
  Buffer stored;
  Buffer decoded;
};

class ChunkChecker::Chunks {
 public:
  Chunks(ArraySpec array, ReadPolicy policy)
      : policy_(policy), array_(std::move(array)), pipeline_(array_.codecs, chunk_bytes(array_)) {
    for (size_t axis = 0; axis < array_.shape.size(); ++axis) {
      const auto& inner = array_.shard.chunks;
      grid_.push_back(ceil_div(array_.shape[axis], array_.chunk_shape[axis]));
      chunks_along_.push_back(axis < inner.size() ? inner[axis] : 1);
      objects_.push_back(ceil_div(grid_.back(), chunks_along_.back()));
      num_objects_ *= objects_.back();
      per_object_ *= chunks_along_.back();
    }
    if (array_.in_python) return;
    Stores stores(0, 1);
    const size_t max_bytes = pipeline_.max_stored_bytes();
    reader_ = std::make_shared<ChunkReader>(array_, stores.make(0, array_, max_bytes), stores.io(), max_bytes, policy);
    reader_->open();
  }

  [[nodiscard]] const ReadPolicy& policy() const { return policy_; }
  [[nodiscard]] int64_t num_numbers() const { return num_objects_ * per_object_; }
  [[nodiscard]] const std::string& name() const { return array_.name; }
  [[nodiscard]] bool is_local() const { return reader_ != nullptr; }
  void cancel() {
    if (reader_) reader_->cancel();
  }

  void decode(Bytes stored, Worker& worker) const {
    const MutableBytes room = pipeline_.is_view() ? MutableBytes{} : worker.decoded.reserve(pipeline_.decoded_bytes());
    pipeline_.decode(stored, room, worker.codecs);
  }
  void check_size(Bytes stored) const { check_stored_size(stored.size(), pipeline_.max_stored_bytes()); }

  void check(Job& job, Worker& worker) const {
    while (job.begin < job.end) {
      const int64_t stop = std::min(job.end, (job.begin / per_object_ + 1) * per_object_);
      check_object(job, stop, worker);
    }
  }

  /// Lists the chunks that a thread waits for which is left behind there, and goes beyond them.
  void give_up(Job& job, const StallWatch::Wait& wait) const {
    const auto count = static_cast<int64_t>(wait.cell);
    ChunkFinding finding = finding_of(job.begin, count, is_sharded() && wait.source == kIndex);
    finding.bad = bare(reader_->overdue(location_of(job.begin)));
    job.begin += count;
    if (finding.chunks > 0) job.found.findings.push_back(std::move(finding));
  }

 private:
  /// The kind of a thread's wait, as the `field` of its wait; the `cell` says for how many numbers that counts.
  static constexpr size_t kChunk = 0;
  static constexpr size_t kIndex = 1;

  [[nodiscard]] bool is_sharded() const { return array_.shard.is_sharded(); }

  /// Chunks [job.begin, stop) of one stored object.
  void check_object(Job& job, int64_t stop, Worker& worker) const {
    if (is_sharded()) {
      ChunkFinding whole = finding_of(job.begin, stop - job.begin, true);
      bool exists = false;
      try {
        const auto numbers = static_cast<size_t>(stop - job.begin);
        exists = reader_->has_shard(location_of(job.begin), *worker.watch, {kIndex, job.begin, numbers, {}});
      } catch (const Error& error) {
        whole.bad = bare(error);
      }
      if (!exists) {
        job.begin = stop;
        if (whole.chunks > 0) job.found.findings.push_back(std::move(whole));
        return;
      }
    }
    for (; job.begin < stop; ++job.begin) {
      if (!is_sharded() || is_inside(job.begin)) check_chunk(job, worker);
    }
  }

  void check_chunk(Job& job, Worker& worker) const {
    ChunkFinding finding = finding_of(job.begin, 1, false);
    try {
      const ReadResult result = read(job.begin, worker);
      if (result.status == ReadStatus::kOk) {
        decode(result.bytes, worker);
        ++job.found.good;
        job.found.stored_bytes += result.bytes.size();
        job.found.decoded_bytes += pipeline_.decoded_bytes();
        return;
      }
    } catch (const Error& error) {
      finding.bad = bare(error);
    }
    job.found.findings.push_back(std::move(finding));
  }

  ReadResult read(int64_t number, Worker& worker) const {
    const ChunkLocation at = location_of(number);
    const StallWatch::Wait wait{kChunk, number, 1, std::chrono::steady_clock::now()};
    ReadResult result = watch_storage(*worker.watch, wait, [&] { return reader_->try_read(at, worker.stored); });
    if (result.status != ReadStatus::kWouldBlock) return result;
    return reader_->read_here(at, worker.stored, *worker.watch, wait);
  }

  [[nodiscard]] ChunkFinding finding_of(int64_t number, int64_t count, bool is_of_shard) const {
    const ChunkLocation at = location_of(number);
    ChunkFinding finding{.number = number, .chunks = count, .key = at.key, .inner = {}, .bad = {}};
    if (is_of_shard) {
      finding.chunks = 0;
      for (int64_t i = number; i < number + count; ++i) finding.chunks += is_inside(i) ? 1 : 0;
    } else if (at.inner_chunk) {
      finding.inner = inner_chunk_name(array_.shard, *at.inner_chunk);
    }
    return finding;
  }

  [[nodiscard]] ChunkLocation location_of(int64_t number) const {
    const std::vector<int64_t> grid = grid_of(number);
    const auto index = [&](size_t axis) { return grid[axis]; };
    return {chunk_key(array_, index), position_in_shard(array_, index)};
  }

  /// Index of a chunk in the grid of read chunks, which may be beyond the end of the array.
  [[nodiscard]] std::vector<int64_t> grid_of(int64_t number) const {
    std::vector<int64_t> grid(objects_.size());
    int64_t object = number / per_object_;
    int64_t position = number % per_object_;
    for (size_t axis = grid.size(); axis-- > 0;) {
      grid[axis] = object % objects_[axis] * chunks_along_[axis] + position % chunks_along_[axis];
      object /= objects_[axis];
      position /= chunks_along_[axis];
    }
    return grid;
  }

  [[nodiscard]] bool is_inside(int64_t number) const {
    const std::vector<int64_t> grid = grid_of(number);
    return std::equal(grid.begin(), grid.end(), grid_.begin(), std::less<>());
  }

  const ReadPolicy policy_;
  const ArraySpec array_;
  std::vector<int64_t> grid_;          ///< read chunks of the array along each axis
  std::vector<int64_t> objects_;       ///< shards of the array along each axis, or chunks where there are none
  std::vector<int64_t> chunks_along_;  ///< read chunks of a stored object along each axis
  int64_t num_objects_ = 1;
  int64_t per_object_ = 1;
  CodecPipeline pipeline_;
  std::shared_ptr<ChunkReader> reader_;  ///< null: the chunks are in a store that Python reads
};

ChunkChecker::ChunkChecker(ArraySpec array, ReadPolicy policy)
    : chunks_(std::make_shared<Chunks>(std::move(array), policy)) {}

ChunkChecker::~ChunkChecker() {
  chunks_->cancel();
  for (const auto& worker : idle_) {
    {
      const std::lock_guard lock(worker->mutex);
      worker->ends = true;
    }
    worker->changed.notify_all();
  }
  threads_.stop(std::chrono::steady_clock::now());
}

int64_t ChunkChecker::num_numbers() const {
  return chunks_->num_numbers();
}

std::shared_ptr<ChunkChecker::Worker> ChunkChecker::take_worker() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto worker = std::move(idle_.back());
      idle_.pop_back();
      return worker;
    }
  }
  return std::make_shared<Worker>();
}

void ChunkChecker::give_back(std::shared_ptr<Worker> worker) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(worker));
}

ChunkCheck ChunkChecker::check(int64_t begin, int64_t end) {
  if (!chunks_->is_local())
    throw Error(ErrorKind::kConfig, chunks_->name() + ": its chunks are not in a local directory");
  const auto job = std::make_shared<Job>();
  job->begin = std::max<int64_t>(begin, 0);
  job->end = std::min(end, num_numbers());
  const auto timeout = chunks_->policy().timeout;
  const auto poll = std::clamp<std::chrono::milliseconds>(timeout / 8, std::chrono::milliseconds(5), kLongestPoll);
  while (job->begin < job->end) {
    auto worker = take_worker();
    std::unique_lock lock(worker->mutex);
    worker->job = job;
    if (worker->watch == nullptr) start_worker(worker);
    worker->changed.notify_all();
    bool is_left_behind = false;
    while (!is_left_behind && !worker->changed.wait_for(lock, poll, [&] { return worker->job == nullptr; })) {
      const auto wait = worker->watch->waiting();
      if (!wait || std::chrono::steady_clock::now() - wait->since < timeout || !worker->watch->abandon(wait->since))
        continue;
      is_left_behind = true;
      chunks_->give_up(*job, *wait);
    }
    lock.unlock();
    if (is_left_behind) continue;  // with another thread
    give_back(std::move(worker));
    if (job->error) std::rethrow_exception(job->error);
  }
  return std::move(job->found);
}

/// Under the lock of the worker.
void ChunkChecker::start_worker(const std::shared_ptr<Worker>& worker) {
  const auto body = [worker, chunks = chunks_](StallWatch& /*watch*/) {
    std::unique_lock lock(worker->mutex);
    for (;;) {
      worker->changed.wait(lock, [&] { return worker->ends || worker->job != nullptr; });
      if (worker->job == nullptr) return;
      const std::shared_ptr<Job> job = worker->job;
      lock.unlock();
      try {
        chunks->check(*job, *worker);
      } catch (const LeftBehind&) {
        throw;
      } catch (...) {
        job->error = std::current_exception();
      }
      lock.lock();
      worker->job = nullptr;
      worker->changed.notify_all();
    }
  };
  try {
    worker->watch = threads_.start(body);
  } catch (const std::system_error& error) {
    throw Error::io(std::string("cannot start a thread to check chunks: ") + error.what(), error.code().value());
  }
}

void ChunkChecker::check_bytes(Bytes stored) {
  chunks_->check_size(stored);
  auto worker = take_worker();
  try {
    chunks_->decode(stored, *worker);
  } catch (...) {
    give_back(std::move(worker));
    throw;
  }
  give_back(std::move(worker));
}

}  // namespace zarrfeed
