#include "storage/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"

namespace zarrfeed {
namespace {

int open_retrying(int directory, const char* path, int flags) {
  int fd = -1;
  do {
    fd = openat(directory, path, flags);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

Error io_error(const std::string& what, int errno_value) {
  return Error::io(what + ": " + std::strerror(errno_value), errno_value);
}

ObjectVersion version_of(const struct stat& info) {
#ifdef __APPLE__
  const timespec& time = info.st_mtimespec;
#else
  const timespec& time = info.st_mtim;
#endif
  return {.device = static_cast<uint64_t>(info.st_dev),
          .inode = static_cast<uint64_t>(info.st_ino),
          .seconds = time.tv_sec,
          .nanoseconds = time.tv_nsec,
          .size = static_cast<uint64_t>(info.st_size)};
}

ReadResult result_of(ReadStatus status, const PendingRead& pending) {
  if (status != ReadStatus::kOk) return {.status = status};
  return {.status = status,
          .bytes = pending.read.bytes,
          .parts = pending.read.parts,
          .object_bytes = pending.object_bytes,
          .version = pending.version};
}

/// Reads the bytes of an open file from `offset` on, of which `done` are there. Returns false if they are not to be had without
/// waiting, and `may_wait` is false.
bool read_bytes(const PendingRead& file, MutableBytes out, uint64_t offset, size_t& done, bool may_wait) {
  while (done < out.size()) {
    MutableBytes rest = out.subspan(done);
    const uint64_t from = offset + done;
    if (from >= file.end) {  // the file has no bytes for the rest of the object
      std::memset(rest.data(), 0, rest.size());
      done = out.size();
      break;
    }
    rest = rest.first(std::min<uint64_t>(rest.size(), file.end - from));
    if (file.memory != nullptr) {
      std::memcpy(rest.data(), file.memory + from, rest.size());
      done += rest.size();
      continue;
    }
    const auto at = static_cast<off_t>(from);
    ssize_t n = -1;
#ifdef RWF_NOWAIT
    if (!may_wait) {
      const iovec piece{rest.data(), rest.size()};
      n = preadv2(file.fd, &piece, 1, at, RWF_NOWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;  // the blocking read tells errors and a shortened file apart
      done += static_cast<size_t>(n);
      continue;
    }
#endif
    n = pread(file.fd, rest.data(), rest.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw io_error("cannot be read", errno);
    if (n == 0) {
      throw Error::io("ended at byte " + std::to_string(offset - file.offset + done) + " of " +
                          std::to_string(file.size) + ": it was changed while being read",
                      EIO);
    }
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

void check_stored_size(size_t size, size_t max_bytes) {
  if (size <= max_bytes) return;
  throw_corrupt("the stored object has " + std::to_string(size) + " bytes, at most " + std::to_string(max_bytes) +
                " are plausible for this array");
}

PendingRead::PendingRead(PendingRead&& other) noexcept {
  *this = std::move(other);
}

PendingRead& PendingRead::operator=(PendingRead&& other) noexcept {
  if (this != &other) {
    close();
    fd = std::exchange(other.fd, -1);
    memory = other.memory;
    offset = other.offset;
    end = other.end;
    size = other.size;
    done = other.done;
    object_bytes = other.object_bytes;
    version = other.version;
    read = std::move(other.read);
  }
  return *this;
}

PendingRead::~PendingRead() {
  close();
}

void PendingRead::close() {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

FileStore::FileStore(std::string root, std::string metadata_key, size_t max_bytes, std::shared_ptr<IoThreads> io,
                     size_t key_depth)
    : root_(std::move(root)),
      metadata_key_(std::move(metadata_key)),
      max_bytes_(max_bytes),
      io_(std::move(io)),
      key_depth_(key_depth) {}

FileStore::~FileStore() {
  close();
}

void FileStore::close() {
  if (directory_ >= 0) ::close(directory_);
  directory_ = -1;
}

void FileStore::open() {
  close();
  if (key_depth_ > 0) return;  // arrays are looked at when a chunk is missing
  directory_ = open_retrying(AT_FDCWD, root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_ < 0) throw io_error(root_ + " cannot be opened", errno);
  check_array_exists();
}

void FileStore::check_array_exists(const std::string& key) const {
  if (metadata_key_.empty()) return;
  std::string root = root_;
  if (key_depth_ > 0) {
    root = key;
    for (size_t i = 0; i < key_depth_; ++i) root.resize(root.find_last_of('/'));
  }
  // Without this, every chunk of a store that was deleted would be a missing one, hence fill values.
  const std::string metadata = key_depth_ > 0 ? root + "/" + metadata_key_ : metadata_key_;
  if (faccessat(directory_, metadata.c_str(), F_OK, 0) != 0) {
    const int code = errno;
    throw io_error(root + "/" + metadata_key_ + " is gone: the array was deleted or moved after it was opened", code);
  }
}

void FileStore::check_no_link_to_nothing(const std::string& key) const {
  // A link to a disk that is not mounted leads nowhere, and what it leads to is not missing but out of reach.
  for (size_t end = 0; end != std::string::npos;) {
    end = key.find('/', end + 1);
    const std::string part = key.substr(0, end);
    struct stat info{};
    if (fstatat(directory_, part.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (S_ISLNK(info.st_mode) && fstatat(directory_, part.c_str(), &info, 0) != 0) {
      const int code = errno;
      throw io_error(part + " is a link to nothing that is there", code);
    }
  }
}

ByteStore::Limits FileStore::limits() const {
  if (io_ == nullptr || io_->max_threads() == 0) return {.requests = 0, .part_costs = kLocalPartCosts};
  return {.requests = io_->max_threads(), .pool = io_.get(), .part_costs = kLocalPartCosts};
}

ReadResult FileStore::try_read(const std::string& key, const ByteRange& range, Buffer& room) {
  PendingRead pending;
  return result_of(read_cached(key, room, pending, range), pending);
}

ReadResult FileStore::read_or_fail(const ReadRequest& request) const {
  try {
    PendingRead pending;
    return result_of(read_blocking(request.key, *request.room, pending, request.range), pending);
  } catch (const Error& error) {
    return {.error = error};
  } catch (const std::bad_alloc&) {
    return {.error = Error::io("no memory for the bytes that it has", ENOMEM)};
  }
}

void FileStore::read(std::vector<ReadRequest> requests) {
  for (ReadRequest& request : requests) {
    if (limits().requests == 0) {
      request.done(read_or_fail(request));
      continue;
    }
    struct Work {
      ReadRequest request;
      ReadResult result;
    };
    const auto work = std::make_shared<Work>(Work{std::move(request), {}});
    io_->post({.in_storage = [self = shared_from_this(), work] { work->result = self->read_or_fail(work->request); },
               .done = [work] { work->request.done(std::move(work->result)); }});
  }
}

bool FileStore::stop(std::chrono::steady_clock::time_point deadline) {
  return io_ == nullptr || io_->stop(deadline);
}

ReadStatus FileStore::open_chunk(const std::string& key, PendingRead& pending, const ByteRange& range) const {
  if (!open_file(key, pending)) {
    check_array_exists(key);
    check_no_link_to_nothing(key);
    return ReadStatus::kMissing;
  }
  return select(pending, range, {.bytes = pending.version.size});
}

bool FileStore::open_file(const std::string& path, PendingRead& pending) const {
  // O_NONBLOCK: a named pipe in the place of a chunk must not hang us; regular files ignore it.
  pending.fd = open_retrying(directory_, path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (pending.fd < 0) {
    if (errno == ENOENT) return false;
    throw io_error("cannot be opened", errno);
  }
  struct stat info{};
  if (fstat(pending.fd, &info) != 0) throw io_error("cannot be examined", errno);
  if (!S_ISREG(info.st_mode)) {
    throw Error::io(S_ISDIR(info.st_mode) ? "is a directory, not a chunk" : "is not a regular file",
                    S_ISDIR(info.st_mode) ? EISDIR : EINVAL);
  }
  pending.version = version_of(info);
  return true;
}

ReadStatus FileStore::select(PendingRead& pending, const ByteRange& range, const ObjectExtent& object) const {
  pending.object_bytes = object.bytes;
  pending.offset = object.begin;
  pending.end = object.end;
  pending.size = static_cast<size_t>(object.bytes);
  pending.done = 0;
  if (range.kind == ByteRange::Kind::kAll) {
    check_stored_size(pending.size, max_bytes_);
  } else {
    if (range.version && *range.version != pending.version) {
      pending.close();
      return ReadStatus::kChanged;
    }
    const uint64_t end = range.kind == ByteRange::Kind::kAt ? range.offset + range.size : range.size;
    if (end > pending.object_bytes) {
      throw_corrupt("the stored object has " + std::to_string(pending.object_bytes) + " bytes, at least " +
                    std::to_string(end) + " are needed");
    }
    pending.offset += range.kind == ByteRange::Kind::kAt ? range.offset : pending.object_bytes - range.size;
    pending.size = static_cast<size_t>(range.size);
  }
  return ReadStatus::kOk;
}

ReadStatus FileStore::read_cached(const std::string& key, Buffer& out, PendingRead& pending,
                                  const ByteRange& range) const {
#ifdef RWF_NOWAIT
  const ReadStatus opened = open_chunk(key, pending, range);
  if (opened != ReadStatus::kOk) return opened;
  if (range.parts != nullptr) return read_open_parts(out, pending, range, false);
  if (!read_bytes(pending, out.reserve(pending.size), pending.offset, pending.done, false))
    return ReadStatus::kWouldBlock;
  pending.close();
  pending.read = {{out.data(), pending.size}, nullptr};
  return ReadStatus::kOk;
#else
  return read_blocking(key, out, pending, range);
#endif
}

ReadStatus FileStore::read_blocking(const std::string& key, Buffer& out, PendingRead& pending,
                                    const ByteRange& range) const {
  if (pending.fd < 0) {
    const ReadStatus opened = open_chunk(key, pending, range);
    if (opened != ReadStatus::kOk) return opened;
  }
  if (range.parts != nullptr) return read_open_parts(out, pending, range, true);
  read_bytes(pending, out.reserve(pending.size), pending.offset, pending.done, true);
  pending.close();
  pending.read = {{out.data(), pending.size}, nullptr};
  return ReadStatus::kOk;
}

ReadStatus FileStore::read_open_parts(Buffer& out, PendingRead& pending, const ByteRange& range, bool may_wait) const {
  const auto read_at = [&](size_t offset, MutableBytes to) {
    size_t done = 0;
    return read_bytes(pending, to, pending.offset + offset, done, may_wait);
  };
  if (!read_parts(*range.parts, pending.size, out, read_at, pending.read)) return ReadStatus::kWouldBlock;
  if (pending.memory != nullptr) return ReadStatus::kOk;
  // The file is open, so that another one in its place is not seen. This one may have been written to between two reads.
  struct stat info{};
  if (fstat(pending.fd, &info) != 0) throw io_error("cannot be examined", errno);
  pending.close();
  if (version_of(info) == pending.version) return ReadStatus::kOk;
  if (range.version) return ReadStatus::kChanged;
  throw Error::io("was changed while parts of it were read", EIO);
}

}  // namespace zarrfeed
