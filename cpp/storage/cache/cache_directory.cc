#include "storage/cache/cache_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/process.h"

namespace zarrfeed {
namespace {

constexpr off_t kCounterByte = 0;
constexpr off_t kProcessesByte = 1;
constexpr off_t kFirstEntryByte = 16;

constexpr size_t kHashSlots = size_t{1} << 17;
constexpr std::chrono::seconds kFullPause{1};

/// Locks or unlocks a byte. 0, or the errno; EAGAIN where another process has it.
int lock_byte(int fd, off_t byte, short type, bool wait) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
#ifdef F_OFD_SETLK
  const int command = wait ? F_OFD_SETLKW : F_OFD_SETLK;
#else
  const int command = wait ? F_SETLKW : F_SETLK;
#endif
  while (fcntl(fd, command, &lock) != 0) {
    if (errno == EINTR) continue;
    return errno == EACCES ? EAGAIN : errno;
  }
  return 0;
}

uint64_t identity_of(const struct stat& info) {
#ifdef __APPLE__
  const timespec& time = info.st_mtimespec;
#else
  const timespec& time = info.st_mtim;
#endif
  return mix_bits(static_cast<uint64_t>(info.st_ino)) ^
         mix_bits(static_cast<uint64_t>(time.tv_sec) * 1'000'000'007 + static_cast<uint64_t>(time.tv_nsec));
}

/// A number for an entry in an open file as it is now.
uint64_t known_as(const CacheEntry& entry, const struct stat& info) {
  return mix_bits(entry.hash) ^ identity_of(info) ^ mix_bits(static_cast<uint64_t>(info.st_size));
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

/// The beginning of the file `state`.
struct CacheDirectory::State {
  std::array<char, 8> magic{'z', 'f', 's', 't', 'a', 't', 'e', '1'};
  uint64_t used_bytes = 0;
  uint64_t processes = 0;  ///< that have the directory open, or died
  uint64_t check = 0;

  [[nodiscard]] uint64_t sum() const { return mix_bits(used_bytes) ^ mix_bits(~processes); }
};

/// The counter of used bytes, read and locked against other processes and, by the mutex, other threads.
class CacheDirectory::StateLock {
 public:
  explicit StateLock(CacheDirectory& directory) : fd_(directory.state_.get()), lock_(directory.mutex_) {
    if (directory.has_locks_) lock_byte(fd_, kCounterByte, F_WRLCK, true);
    State found;
    is_valid_ = pread(fd_, &found, sizeof(found), 0) == sizeof(found) && found.magic == state.magic &&
                found.check == found.sum();
    if (is_valid_) state = found;
  }
  ~StateLock() { lock_byte(fd_, kCounterByte, F_UNLCK, false); }
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

  [[nodiscard]] bool is_valid() const { return is_valid_; }
  void save() {
    state.check = state.sum();
    is_valid_ = pwrite(fd_, &state, sizeof(state), 0) == sizeof(state);
  }

  State state;

 private:
  const int fd_;
  const std::lock_guard<std::mutex> lock_;
  bool is_valid_ = false;
};

CacheDirectory::CacheDirectory(std::string path, uint64_t limit, std::optional<gid_t> group)
    : folder_(std::move(path), group), limit_(limit), checked_(kHashSlots), present_(kHashSlots) {}

std::shared_ptr<CacheDirectory> CacheDirectory::open(const std::string& path, uint64_t limit,
                                                     std::optional<gid_t> group) {
  std::string absolute = std::filesystem::absolute(path).lexically_normal().string();
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  const std::shared_ptr<CacheDirectory> made(new CacheDirectory(std::move(absolute), limit, group));
  if (const auto trouble = made->folder_.open()) {
    made->fail(trouble.what, trouble.errno_value);
  } else {
    made->open_state();
  }
  return made;
}

CacheDirectory::~CacheDirectory() {
  close();
}

void CacheDirectory::open_state() {
  state_ = folder_.open_state();
  if (!state_ || !folder_.is_writable()) {
    fail("cannot be written, so nothing is added", errno);
    return;
  }
  owner_ = process_id();
  const int no_locks = lock_byte(state_.get(), kProcessesByte, F_RDLCK, false);
  if (no_locks != 0 && no_locks != EAGAIN) has_locks_ = false;
  // Exclusive while the bytes are counted: whoever opens the directory meanwhile waits in the line after this one.
  const bool is_first = has_locks_ && lock_byte(state_.get(), kProcessesByte, F_WRLCK, false) == 0;
  enter(is_first || !has_locks_);
  if (has_locks_) lock_byte(state_.get(), kProcessesByte, F_RDLCK, true);
  writes_ = trouble().empty();
  if (!has_locks_ && writes_) {
    const std::lock_guard lock(mutex_);
    trouble_ = "cache " + path() + ": the file system has no locks, so processes fetch the same chunk at once";
  }
}

void CacheDirectory::enter(bool may_recount) {
  if (may_recount) sweep_leftovers();
  StateLock lock(*this);
  if (may_recount && lock.is_valid() && has_locks_ && lock.state.processes == 0) {
    // Everybody closed it: the counter is right.
  } else if (may_recount || !lock.is_valid()) {
    lock.state.used_bytes = count_entries();
    lock.state.processes = 0;
  }
  ++lock.state.processes;
  lock.save();
  if (!lock.is_valid()) trouble_ = "cache " + path() + ": the counter of used bytes cannot be written";
}

void CacheDirectory::close() {
  if (!state_ || owner_ != process_id() || is_closed_.exchange(true)) return;
  writes_ = false;
  StateLock lock(*this);
  if (!lock.is_valid() || lock.state.processes == 0) return;
  --lock.state.processes;
  lock.save();
}

void CacheDirectory::fail(const std::string& what, int errno_value) {
  writes_ = false;
  const std::lock_guard lock(mutex_);
  if (trouble_.empty()) trouble_ = "cache " + path() + ": " + what + ": " + std::strerror(errno_value);
}

std::string CacheDirectory::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

uint64_t CacheDirectory::count_entries() const {
  uint64_t used = 0;
  folder_.visit_entries(kCacheEntries, [&](const std::string&, uint64_t size) { used += counted_bytes(size); });
  return used;
}

CacheDirectory::Listing CacheDirectory::list(const std::string& store, const std::string& prefix, size_t most) const {
  constexpr int kFolders = 256;  // named by two digits of a hash
  Listing listing;
  const std::string root = CacheEntry({.store = store}).folder;
  size_t seen = 0;
  for (int number = 0; number < kFolders; ++number) {
    if (seen >= most && seen > 0) {
      listing.share = static_cast<double>(number) / kFolders;
      break;
    }
    const std::string folder = root + "/" + hex_of(static_cast<uint64_t>(number)).substr(14);
    folder_.visit_entries(folder, [&](const std::string& path, uint64_t size) {
      const auto info = read_info(path);
      ++seen;
      if (info && info->key.store == store && info->key.object.starts_with(prefix)) {
        listing.entries.push_back({*info, counted_bytes(size)});
      }
    });
  }
  return listing;
}

std::vector<CacheDirectory::StoredFile> CacheDirectory::files() const {
  std::vector<StoredFile> found;
  folder_.visit_entries(kCacheEntries, [&](const std::string& path, uint64_t size) { found.push_back({path, size}); });
  return found;
}

std::optional<CacheEntryInfo> CacheDirectory::read_info(const std::string& path) const {
  struct stat info{};
  const File file = folder_.open_entry(path, info);
  return file && folder_.believes(info) ? read_cache_entry_info(file.get()) : std::nullopt;
}

std::optional<CacheEntryInfo> CacheDirectory::check(const std::string& path) const {
  struct stat info{};
  const File file = folder_.open_entry(path, info);
  if (!file) return std::nullopt;
  return check_cache_entry(file.get(), this->path() + "/" + path);
}

uint64_t CacheDirectory::remove(const std::string& path) {
  const uint64_t bytes = folder_.size_of(path).value_or(0);
  if (const int error = folder_.remove(path); error != 0 && error != ENOENT) {
    throw Error::io("cache " + this->path() + ": " + path + " cannot be deleted: " + std::strerror(error), error);
  }
  return bytes;
}

/// Deletes files of writers that died: these hold no lock on their file any more.
void CacheDirectory::sweep_leftovers() const {
  folder_.sweep_leftovers([](int fd) { return lock_byte(fd, 0, F_WRLCK, false) != EAGAIN; });
}

uint64_t CacheDirectory::recount() {
  if (!state_) return count_entries();
  sweep_leftovers();
  StateLock lock(*this);
  lock.state.used_bytes = count_entries();
  lock.save();
  return lock.state.used_bytes;
}

uint64_t CacheDirectory::clear(const std::string& store) {
  const uint64_t before = count_entries();
  const int error = folder_.clear(store.empty() ? kCacheEntries : CacheEntry({.store = store}).folder);
  if (error != 0) throw Error::io("cache " + path() + ": cannot be cleared: " + std::strerror(error), error);
  const uint64_t left = recount();
  return before > left ? before - left : 0;
}

uint64_t CacheDirectory::used_bytes() {
  if (!state_) return count_entries();
  const StateLock lock(*this);
  return lock.is_valid() ? lock.state.used_bytes : 0;
}

bool CacheDirectory::reserve(uint64_t bytes) {
  StateLock lock(*this);
  if (!lock.is_valid()) {  // deleted or damaged by somebody
    lock.state.used_bytes = count_entries();
    lock.state.processes = 1;
  }
  if (bytes > limit_ || lock.state.used_bytes > limit_ - bytes) return false;
  lock.state.used_bytes += bytes;
  lock.save();
  return lock.is_valid();
}

void CacheDirectory::give_back(uint64_t bytes) {
  if (!state_ || bytes == 0) return;
  StateLock lock(*this);
  if (!lock.is_valid()) return;
  lock.state.used_bytes -= std::min(bytes, lock.state.used_bytes);
  lock.save();
}

bool CacheDirectory::contains(const CacheEntry& entry) const {
  if (present_[entry.hash % present_.size()].load(std::memory_order_relaxed) == entry.hash) return true;
  return folder_.is_open() && folder_.has(entry.path);
}

CacheDirectory::Found CacheDirectory::read(const CacheEntry& entry, Buffer& room, size_t max_bytes, bool may_wait,
                                           PartsRead& out, const ChunkParts* parts) {
  const Found found = read_file(entry, room, max_bytes, may_wait, out, parts);
  std::atomic<uint64_t>& slot = present_[entry.hash % present_.size()];
  if (found == Found::kHit) {
    slot.store(entry.hash, std::memory_order_relaxed);
  } else if (found != Found::kWouldBlock && slot.load(std::memory_order_relaxed) == entry.hash) {
    slot.store(0, std::memory_order_relaxed);
  }
  return found;
}

CacheDirectory::Found CacheDirectory::read_file(const CacheEntry& entry, Buffer& room, size_t max_bytes, bool may_wait,
                                                PartsRead& out, const ChunkParts* parts) {
  if (!folder_.is_open()) return Found::kMiss;
  struct stat info{};
  const File file = folder_.open_entry(entry.path, info);
  if (!file) return Found::kMiss;
  if (!folder_.believes(info)) {
    folder_.remove(entry.path);  // it was never counted
    return Found::kDamaged;
  }
  CacheEntryFile content;
  const auto size = static_cast<uint64_t>(info.st_size);
  const uint64_t known = known_as(entry, info);
  std::atomic<uint64_t>& slot = checked_[known % checked_.size()];
  const bool is_checked = slot.load(std::memory_order_relaxed) == known;
  if (!is_checked) parts = nullptr;  // the checksum is one of all bytes
  Found found = CacheEntryFile::read(file.get(), size, entry, max_bytes, may_wait, room, content, parts);
  if (found == Found::kHit) {
    if (!is_checked) {
      if (content.is_intact()) {
        slot.store(known, std::memory_order_relaxed);
      } else {
        found = Found::kDamaged;
      }
    }
    out = content.read();
  }
  if (found == Found::kDamaged) drop(entry);
  return found;
}

/// Deletes an entry that is damaged.
void CacheDirectory::drop(const CacheEntry& entry) {
  const auto size = folder_.size_of(entry.path);
  if (size && folder_.remove(entry.path) == 0) give_back(counted_bytes(*size));
}

bool CacheDirectory::admits() const {
  return writes_.load(std::memory_order_relaxed) && full_until_ns_.load(std::memory_order_relaxed) <= now_ns();
}

CacheDirectory::Admitted CacheDirectory::admit(const CacheEntry& entry, Bytes payload) {
  if (!writes_) return Admitted::kFailed;
  const auto refuse = [this] {
    full_until_ns_ = now_ns() + std::chrono::nanoseconds(kFullPause).count();
    return Admitted::kFull;
  };
  const uint64_t bytes = counted_bytes(CacheEntryFile::size_of(entry, payload.size()));
  const auto old = folder_.size_of(entry.path);
  const uint64_t old_bytes = old ? counted_bytes(*old) : 0;
  const uint64_t more = bytes > old_bytes ? bytes - old_bytes : 0;
  if (!reserve(more)) return refuse();
  std::string leftover;
  int error = write_whole(leftover, entry, payload);
  if (error == 0) error = folder_.move_into_place(leftover, entry);
  if (error == 0) {
    give_back(old_bytes > bytes ? old_bytes - bytes : 0);
    return Admitted::kYes;
  }
  folder_.remove(leftover);
  give_back(more);
  fail("an entry cannot be written, so nothing is added any more", error);
  return Admitted::kFailed;
}

/// Writes header, label and payload to a new file. 0, or the errno.
int CacheDirectory::write_whole(std::string& path, const CacheEntry& entry, Bytes payload) {
  const File file = folder_.make_leftover(path);
  if (!file) return errno;
  lock_byte(file.get(), 0, F_WRLCK, false);  // says that the writer lives
  const int error = CacheEntryFile::write(file.get(), entry, payload);
  struct stat info{};
  if (error == 0 && fstat(file.get(), &info) == 0) {  // this process knows that it is whole
    const uint64_t known = known_as(entry, info);
    checked_[known % checked_.size()].store(known, std::memory_order_relaxed);
  }
  return error;
}

CacheDirectory::ClaimPtr CacheDirectory::try_claim(const CacheEntry& entry) {
  {
    const std::lock_guard lock(mutex_);
    if (!claimed_.insert(entry.hash).second) return nullptr;
    if (state_ && has_locks_) {
      const int error = lock_byte(state_.get(), kFirstEntryByte + static_cast<off_t>(entry.hash >> 2), F_WRLCK, false);
      if (error == EAGAIN) {
        claimed_.erase(entry.hash);
        return nullptr;
      }
    }
  }
  return std::make_shared<const Claim>(shared_from_this(), entry.hash);
}

void CacheDirectory::release(uint64_t hash) {
  const std::lock_guard lock(mutex_);
  claimed_.erase(hash);
  if (state_ && has_locks_) lock_byte(state_.get(), kFirstEntryByte + static_cast<off_t>(hash >> 2), F_UNLCK, false);
}

}  // namespace zarrfeed
