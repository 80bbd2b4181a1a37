#include "storage/python_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

namespace zarrfeed {

/// A call that completes requests. clear() waits for it.
class StoreBridge::Call {
 public:
  explicit Call(StoreBridge& bridge) : bridge_(bridge) {
    const std::lock_guard lock(bridge_.mutex_);
    ++bridge_.calls_;
  }
  ~Call() {
    const std::lock_guard lock(bridge_.mutex_);
    if (--bridge_.calls_ == 0) bridge_.calls_ended_.notify_all();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  StoreBridge& bridge_;
};

StoreBridge::StoreBridge() {
  int ends[2];
  if (pipe(ends) != 0) {
    const int code = errno;
    throw Error::io(std::string("cannot make a pipe: ") + std::strerror(code), code);
  }
  read_end_ = ends[0];
  write_end_ = ends[1];
  for (const int end : ends) {
    fcntl(end, F_SETFD, FD_CLOEXEC);
    fcntl(end, F_SETFL, O_NONBLOCK);
  }
}

StoreBridge::~StoreBridge() {
  ::close(write_end_);
  ::close(read_end_);
}

void StoreBridge::post(size_t source, std::vector<ReadRequest> requests) {
  if (requests.empty()) return;
  const std::lock_guard lock(mutex_);
  const size_t before = requests_.size();
  for (ReadRequest& request : requests) {
    const uint64_t id = ++last_request_id_;
    awaited_.emplace(
        id, Awaited{source, {request.key, request.inner_chunk, request.range.is_index}, std::move(request.done)});
    const bool goes_along = &request != requests.data() && request.range.kind == ByteRange::Kind::kAt &&
                            !request.range.is_index && !requests_.back().is_index &&
                            requests_.back().key == request.key;
    if (!goes_along) requests_.push_back({source, std::move(request.key), request.range.is_index, {}});
    requests_.back().parts.push_back({id, request.range});
  }
  signal();
  for (size_t i = before; i < requests_.size(); ++i) posted_.notify_one();
}

std::optional<Asked> StoreBridge::oldest(size_t source) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(awaited_.begin(), awaited_.end(), [&](const auto& entry) { return entry.second.source == source; });
  return found == awaited_.end() ? std::nullopt : std::optional(found->second.asked);
}

void StoreBridge::clear() {
  std::map<uint64_t, Awaited> dropped;  // holds what the requests held: let go of without the lock
  std::unique_lock lock(mutex_);
  dropped.swap(awaited_);
  calls_ended_.wait(lock, [this] { return calls_ == 0; });
  drain();
  requests_.clear();
  finished_.clear();
  first_request_id_ = last_request_id_ + 1;
  ++epoch_;
  posted_.notify_all();
}

void StoreBridge::take(std::vector<FetchRequest>& requests, std::vector<uint64_t>& finished) {
  requests.clear();
  finished.clear();
  const std::lock_guard lock(mutex_);
  drain();
  requests.assign(std::move_iterator(requests_.begin()), std::move_iterator(requests_.end()));
  requests_.clear();
  finished.swap(finished_);
}

uint64_t StoreBridge::epoch() {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

std::optional<TakenRequest> StoreBridge::take_one(uint64_t epoch) {
  std::unique_lock lock(mutex_);
  posted_.wait(lock, [&] { return epoch_ != epoch || !requests_.empty(); });
  if (epoch_ != epoch) return std::nullopt;
  std::optional<TakenRequest> taken(std::in_place);
  taken->request = std::move(requests_.front());
  requests_.pop_front();
  taken->finished.swap(finished_);
  taken->waiting = requests_.size();
  return taken;
}

void StoreBridge::answer(std::span<const FetchAnswer> answers) {
  const Call call(*this);
  for (const FetchAnswer& answer : answers) {
    const std::optional<Completion> done = take_awaited(answer.request_id);
    if (!done) continue;
    ReadResult result;
    if (answer.bytes) {
      const auto finish = [bridge = shared_from_this(), id = answer.request_id](const void*) { bridge->finish(id); };
      result.status = ReadStatus::kOk;
      result.bytes = *answer.bytes;
      result.hold = std::shared_ptr<const void>(this, finish);
    }
    (*done)(std::move(result));
  }
}

void StoreBridge::refuse(uint64_t request_id, const Error& error) {
  const Call call(*this);
  if (const auto done = take_awaited(request_id)) (*done)({.error = error});
}

std::optional<Completion> StoreBridge::take_awaited(uint64_t request_id) {
  const std::lock_guard lock(mutex_);
  const auto entry = awaited_.find(request_id);
  if (entry == awaited_.end()) return std::nullopt;
  std::optional<Completion> done = std::move(entry->second.done);
  awaited_.erase(entry);
  return done;
}

void StoreBridge::finish(uint64_t request_id) {
  const std::lock_guard lock(mutex_);
  if (request_id < first_request_id_) return;
  finished_.push_back(request_id);
  signal();
}

void StoreBridge::signal() {
  if (signalled_) return;
  const char byte = 0;
  ssize_t written = -1;
  do {
    written = ::write(write_end_, &byte, 1);
  } while (written < 0 && errno == EINTR);
  signalled_ = true;  // the pipe has room for a byte: there is never more than one in it
}

void StoreBridge::drain() {
  if (!signalled_) return;
  char byte = 0;
  ssize_t got = -1;
  do {
    got = ::read(read_end_, &byte, 1);
  } while (got < 0 && errno == EINTR);
  signalled_ = false;
}

}  // namespace zarrfeed
