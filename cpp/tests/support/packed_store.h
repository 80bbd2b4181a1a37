#pragma once
// A store of our own, as someone would add one: all chunks of an array in one file, `data`, and where they are in another.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "storage/access/byte_store.h"

namespace zarrfeed::testing {

class PackedStore : public ByteStore {
 public:
  /// With `waits`, chunks are not to be had at once; with `threads` = 0, whoever reads waits for them.
  PackedStore(std::filesystem::path directory, bool waits, size_t threads)
      : directory_(std::move(directory)), waits_(waits), threads_(threads) {}
  ~PackedStore() override { PackedStore::close(); }

  void open() override {
    ranges_.clear();
    std::ifstream index(directory_ / "index");
    for (std::string key; index >> key;) index >> ranges_[key].first >> ranges_[key].second;
    file_ = ::open((directory_ / "data").c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) throw Error::io((directory_ / "data").string() + " cannot be opened", errno);
  }
  void close() override {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }

  ReadResult try_read(const std::string& key, const ByteRange& /*range*/, Buffer& room) override {
    return waits_ ? ReadResult{.status = ReadStatus::kWouldBlock} : find(key, room);
  }
  void read(std::vector<ReadRequest> requests) override {
    for (const ReadRequest& request : requests) request.done(find(request.key, *request.room));
  }
  [[nodiscard]] Limits limits() const override { return {.requests = threads_}; }
  bool stop(std::chrono::steady_clock::time_point /*deadline*/) override { return true; }

 private:
  [[nodiscard]] ReadResult find(const std::string& key, Buffer& room) const {
    const auto found = ranges_.find(key);
    if (found == ranges_.end()) return {.status = ReadStatus::kMissing};
    const auto [offset, size] = found->second;
    const MutableBytes bytes = room.reserve(size);
    const ssize_t n = pread(file_, bytes.data(), size, static_cast<off_t>(offset));
    if (n != static_cast<ssize_t>(size)) return {.error = Error::io("cannot be read", n < 0 ? errno : EIO)};
    return {.status = ReadStatus::kOk, .bytes = bytes};
  }

  const std::filesystem::path directory_;
  const bool waits_;
  const size_t threads_;
  int file_ = -1;
  std::map<std::string, std::pair<size_t, size_t>> ranges_;
};

}  // namespace zarrfeed::testing
