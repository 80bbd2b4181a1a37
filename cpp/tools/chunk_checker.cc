#include "tools/chunk_checker.h"

#include <algorithm>
#include <utility>

#include "storage/chunk_key.h"

namespace zarrfeed {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b != 0);
}

size_t chunk_bytes(const ArraySpec& array) {
  size_t n = array.item_bytes;
  for (const int64_t extent : array.chunk_shape) n *= static_cast<size_t>(extent);
  return n;
}

}  // namespace

class ChunkChecker::Lease {
 public:
  explicit Lease(ChunkChecker& owner) : owner_(owner) {
    const std::lock_guard lock(owner_.mutex_);
    if (owner_.idle_.empty()) {
      scratch_ = std::make_unique<Scratch>();
    } else {
      scratch_ = std::move(owner_.idle_.back());
      owner_.idle_.pop_back();
    }
  }
  ~Lease() {
    const std::lock_guard lock(owner_.mutex_);
    owner_.idle_.push_back(std::move(scratch_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch& operator*() { return *scratch_; }

 private:
  ChunkChecker& owner_;
  std::unique_ptr<Scratch> scratch_;
};

ChunkChecker::ChunkChecker(ArraySpec array) : array_(std::move(array)), pipeline_(array_.codecs, chunk_bytes(array_)) {
  for (size_t axis = 0; axis < array_.shape.size(); ++axis) {
    const auto& inner = array_.shard.chunks;
    grid_.push_back(ceil_div(array_.shape[axis], array_.chunk_shape[axis]));
    chunks_along_.push_back(axis < inner.size() ? inner[axis] : 1);
    objects_.push_back(ceil_div(grid_.back(), chunks_along_.back()));
    num_objects_ *= objects_.back();
    per_object_ *= chunks_along_.back();
  }
  if (array_.fed) return;
  source_ = std::make_unique<FileStore>(array_.root, array_.metadata_key, pipeline_.max_stored_bytes());
  source_->open();
  if (!array_.shard.is_sharded()) return;
  shards_ = std::make_unique<ShardReader>(*source_, array_.shard, pipeline_.max_stored_bytes());
}

ChunkCheck ChunkChecker::check(int64_t begin, int64_t end) {
  if (source_ == nullptr) throw Error(ErrorKind::kConfig, array_.name + ": its chunks are not in a local directory");
  Lease scratch(*this);
  ChunkCheck out;
  begin = std::max<int64_t>(begin, 0);
  end = std::min(end, num_numbers());
  while (begin < end) {
    const int64_t stop = std::min(end, (begin / per_object_ + 1) * per_object_);
    check_object(begin, stop, *scratch, out);
    begin = stop;
  }
  return out;
}

void ChunkChecker::check_bytes(Bytes stored) {
  Lease lease(*this);
  Scratch& scratch = *lease;
  check_stored_size(stored.size(), pipeline_.max_stored_bytes());
  const MutableBytes room = pipeline_.is_view() ? MutableBytes{} : scratch.decoded.reserve(pipeline_.decoded_bytes());
  pipeline_.decode(stored, room, scratch.codecs);
}

/// Chunks [begin, end) of one stored object.
void ChunkChecker::check_object(int64_t begin, int64_t end, Scratch& scratch, ChunkCheck& out) {
  const std::vector<int64_t> grid = grid_of(begin);
  const std::string key = chunk_key(array_, [&](size_t axis) { return grid[axis]; });
  if (shards_ != nullptr) {
    ChunkFinding whole{.number = begin, .chunks = 0, .key = key, .inner = {}, .bad = {}};
    bool exists = false;
    try {
      exists = shards_->exists(key);
    } catch (const Error& error) {
      whole.bad = error;
    }
    if (!exists) {
      for (int64_t number = begin; number < end; ++number) whole.chunks += is_inside(number) ? 1 : 0;
      if (whole.chunks > 0) out.findings.push_back(std::move(whole));
      return;
    }
  }
  for (int64_t number = begin; number < end; ++number) {
    if (shards_ == nullptr || is_inside(number)) check_chunk(number, key, scratch, out);
  }
}

void ChunkChecker::check_chunk(int64_t number, const std::string& key, Scratch& scratch, ChunkCheck& out) {
  ChunkFinding finding{.number = number, .chunks = 1, .key = key, .inner = {}, .bad = {}};
  PendingRead pending;
  try {
    const auto place = static_cast<size_t>(number % per_object_);
    const ReadStatus status = shards_ == nullptr ? source_->read_blocking(key, scratch.stored, pending)
                                                 : shards_->read_blocking(key, place, scratch.stored, pending);
    if (status == ReadStatus::kOk) {
      const MutableBytes room =
          pipeline_.is_view() ? MutableBytes{} : scratch.decoded.reserve(pipeline_.decoded_bytes());
      pipeline_.decode({scratch.stored.data(), pending.size}, room, scratch.codecs);
      ++out.good;
      out.stored_bytes += pending.size;
      out.decoded_bytes += pipeline_.decoded_bytes();
      return;
    }
  } catch (const Error& error) {
    finding.bad = error;
  }
  if (shards_ != nullptr) finding.inner = inner_chunk_name(array_.shard, static_cast<size_t>(number % per_object_));
  out.findings.push_back(std::move(finding));
}

/// Place of a chunk in the grid of read chunks, which may be beyond the end of the array.
std::vector<int64_t> ChunkChecker::grid_of(int64_t number) const {
  std::vector<int64_t> grid(objects_.size());
  int64_t object = number / per_object_;
  int64_t place = number % per_object_;
  for (size_t axis = grid.size(); axis-- > 0;) {
    grid[axis] = object % objects_[axis] * chunks_along_[axis] + place % chunks_along_[axis];
    object /= objects_[axis];
    place /= chunks_along_[axis];
  }
  return grid;
}

bool ChunkChecker::is_inside(int64_t number) const {
  int64_t object = number / per_object_;
  int64_t place = number % per_object_;
  for (size_t axis = grid_.size(); axis-- > 0;) {
    if (object % objects_[axis] * chunks_along_[axis] + place % chunks_along_[axis] >= grid_[axis]) return false;
    object /= objects_[axis];
    place /= chunks_along_[axis];
  }
  return true;
}

}  // namespace zarrfeed
