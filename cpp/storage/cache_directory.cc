#include "storage/cache_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/process.h"

namespace zarrfeed {
namespace {

namespace fs = std::filesystem;

/// Says that a directory is a cache, and of which format. The first file in a directory; its content says nothing.
constexpr const char* kMarker = "ZARRFEED-CACHE-1";
constexpr std::string_view kMarkerOfAnyFormat = "ZARRFEED-CACHE-";
constexpr const char* kLeftovers = "tmp";
constexpr const char* kState = "state";
/// In the folder of a store's entries: the name of the store.
constexpr const char* kStoreName = "store";

constexpr off_t kCounterByte = 0;
constexpr off_t kProcessesByte = 1;
constexpr off_t kFirstEntryByte = 16;

constexpr size_t kCheckedPlaces = size_t{1} << 17;
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

int open_at(int directory, const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = openat(directory, path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  const int fd_;
};

uint64_t identity_of(const struct stat& info) {
#ifdef __APPLE__
  const timespec& time = info.st_mtimespec;
#else
  const timespec& time = info.st_mtim;
#endif
  return mix_bits(static_cast<uint64_t>(info.st_ino)) ^
         mix_bits(static_cast<uint64_t>(time.tv_sec) * 1'000'000'007 + static_cast<uint64_t>(time.tv_nsec));
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_empty_or_ours(const fs::path& path, std::string& foreign) {
  bool is_ours = false;
  for (const auto& item : fs::directory_iterator(path)) {
    const std::string name = item.path().filename().string();
    if (name == kMarker) is_ours = true;
    if (name != kMarker && name.starts_with(kMarkerOfAnyFormat)) {
      throw Error(ErrorKind::kConfig,
                  "cache " + path.string() + ": was made by another version of zarrfeed (" + name + "); delete it");
    }
    if (name != "lost+found") foreign = name;  // of a file system of its own
  }
  return is_ours || foreign.empty();
}

}  // namespace

/// What the file `state` begins with.
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
  explicit StateLock(CacheDirectory& directory) : fd_(directory.state_), lock_(directory.mutex_) {
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

CacheDirectory::CacheDirectory(std::string path, uint64_t limit)
    : path_(std::move(path)), limit_(limit), checked_(kCheckedPlaces), present_(kCheckedPlaces) {}

std::shared_ptr<CacheDirectory> CacheDirectory::open(const std::string& path, uint64_t limit) {
  const std::shared_ptr<CacheDirectory> made(new CacheDirectory(fs::absolute(path).lexically_normal().string(), limit));
  made->prepare();
  return made;
}

CacheDirectory::~CacheDirectory() {
  close();
  if (state_ >= 0) ::close(state_);
  if (directory_ >= 0) ::close(directory_);
}

void CacheDirectory::prepare() {
  std::error_code error;
  fs::create_directories(path_, error);
  if (!fs::is_directory(path_)) {
    if (fs::exists(fs::symlink_status(path_, error))) {
      throw Error(ErrorKind::kConfig, "cache " + path_ + ": is not a directory");
    }
    fail("cannot be made", error ? error.value() : ENOENT);
    return;
  }
  std::string foreign;
  try {
    if (!is_empty_or_ours(path_, foreign) && !fs::exists(fs::path(path_) / kMarker)) {
      throw Error(ErrorKind::kConfig, "cache " + path_ + ": has files of something else, such as " + foreign +
                                          ", must be empty, missing or a cache of zarrfeed");
    }
  } catch (const fs::filesystem_error& unreadable) {
    fail("cannot be listed", unreadable.code().value());
    return;
  }
  const int directory = open_at(AT_FDCWD, path_.c_str(), O_RDONLY | O_DIRECTORY);
  if (directory < 0) {
    fail("cannot be opened", errno);
    return;
  }
  directory_ = directory;
  const File marker(open_at(directory_, kMarker, O_RDONLY | O_CREAT, 0666));
  if (!marker) {
    fail("cannot be written, so nothing is added", errno);
    return;
  }
  for (const char* folder : {kCacheEntries, kLeftovers}) {
    if (mkdirat(directory_, folder, 0777) != 0 && errno != EEXIST) {
      fail("cannot be written, so nothing is added", errno);
      return;
    }
  }
  open_state();
}

void CacheDirectory::open_state() {
  state_ = open_at(directory_, kState, O_RDWR | O_CREAT, 0666);
  if (state_ < 0 || faccessat(directory_, kLeftovers, W_OK, 0) != 0) {
    fail("cannot be written, so nothing is added", errno);
    return;
  }
  owner_ = process_id();
  const int no_locks = lock_byte(state_, kProcessesByte, F_RDLCK, false);
  if (no_locks != 0 && no_locks != EAGAIN) has_locks_ = false;
  // Exclusive while the bytes are counted: whoever opens the directory meanwhile waits in the line after this one.
  const bool is_first = has_locks_ && lock_byte(state_, kProcessesByte, F_WRLCK, false) == 0;
  enter(is_first || !has_locks_);
  if (has_locks_) lock_byte(state_, kProcessesByte, F_RDLCK, true);
  writes_ = trouble().empty();
  if (!has_locks_ && writes_) {
    const std::lock_guard lock(mutex_);
    trouble_ = "cache " + path_ + ": the file system has no locks, so processes fetch the same chunk at once";
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
  if (!lock.is_valid()) trouble_ = "cache " + path_ + ": the counter of used bytes cannot be written";
}

void CacheDirectory::close() {
  if (state_ < 0 || owner_ != process_id() || is_closed_.exchange(true)) return;
  writes_ = false;
  StateLock lock(*this);
  if (!lock.is_valid() || lock.state.processes == 0) return;
  --lock.state.processes;
  lock.save();
}

void CacheDirectory::fail(const std::string& what, int errno_value) {
  writes_ = false;
  const std::lock_guard lock(mutex_);
  if (trouble_.empty()) trouble_ = "cache " + path_ + ": " + what + ": " + std::strerror(errno_value);
}

std::string CacheDirectory::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

uint64_t CacheDirectory::count_entries() const {
  uint64_t used = 0;
  std::error_code error;
  const fs::path root = fs::path(path_) / kCacheEntries;
  for (fs::recursive_directory_iterator item(root, error), end; !error && item != end; item.increment(error)) {
    std::error_code gone;
    if (item.depth() < 2 || !item->is_regular_file(gone)) continue;
    const uint64_t size = item->file_size(gone);
    if (!gone) used += counted_bytes(size);
  }
  return used;
}

CacheDirectory::Listing CacheDirectory::list(const std::string& store, const std::string& prefix, size_t most) const {
  constexpr int kFolders = 256;  // named by two digits of a hash
  Listing listing;
  const fs::path root = fs::path(path_) / CacheEntry({.store = store}).folder;
  size_t seen = 0;
  for (int number = 0; number < kFolders; ++number) {
    if (seen >= most && seen > 0) {
      listing.share = static_cast<double>(number) / kFolders;
      break;
    }
    std::error_code error;
    const fs::path folder = root / hex_of(static_cast<uint64_t>(number)).substr(14);
    for (fs::directory_iterator item(folder, error), end; !error && item != end; item.increment(error)) {
      std::error_code gone;
      const uint64_t size = item->file_size(gone);
      const auto info = gone ? std::nullopt : read_cache_entry_info(item->path().string());
      ++seen;
      if (info && info->key.store == store && info->key.object.starts_with(prefix)) {
        listing.entries.push_back({*info, counted_bytes(size)});
      }
    }
  }
  return listing;
}

/// Deletes files of writers that died: these hold no lock on their file any more.
void CacheDirectory::sweep_leftovers() const {
  std::error_code error;
  const fs::path root = fs::path(path_) / kLeftovers;
  for (fs::directory_iterator item(root, error), end; !error && item != end; item.increment(error)) {
    const std::string path = std::string(kLeftovers) + "/" + item->path().filename().string();
    const File file(open_at(directory_, path.c_str(), O_RDWR | O_NONBLOCK));
    if (file && lock_byte(file.get(), 0, F_WRLCK, false) != EAGAIN) unlinkat(directory_, path.c_str(), 0);
  }
}

uint64_t CacheDirectory::recount() {
  if (state_ < 0) return count_entries();
  sweep_leftovers();
  StateLock lock(*this);
  lock.state.used_bytes = count_entries();
  lock.save();
  return lock.state.used_bytes;
}

uint64_t CacheDirectory::clear(const std::string& store) {
  const uint64_t before = count_entries();
  std::error_code error;
  const fs::path root = fs::path(path_);
  fs::remove_all(root / (store.empty() ? kCacheEntries : CacheEntry({.store = store}).folder), error);
  if (error) throw Error::io("cache " + path_ + ": cannot be cleared: " + error.message(), error.value());
  fs::create_directory(root / kCacheEntries, error);
  const uint64_t left = recount();
  return before > left ? before - left : 0;
}

uint64_t CacheDirectory::used_bytes() {
  if (state_ < 0) return count_entries();
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
  if (state_ < 0 || bytes == 0) return;
  StateLock lock(*this);
  if (!lock.is_valid()) return;
  lock.state.used_bytes -= std::min(bytes, lock.state.used_bytes);
  lock.save();
}

bool CacheDirectory::contains(const CacheEntry& entry) const {
  if (present_[entry.hash % present_.size()].load(std::memory_order_relaxed) == entry.hash) return true;
  return directory_ >= 0 && faccessat(directory_, entry.path.c_str(), F_OK, 0) == 0;
}

CacheDirectory::Found CacheDirectory::read(const CacheEntry& entry, Buffer& room, size_t max_bytes, bool may_wait,
                                           Bytes& out) {
  const Found found = read_file(entry, room, max_bytes, may_wait, out);
  std::atomic<uint64_t>& place = present_[entry.hash % present_.size()];
  if (found == Found::kHit) {
    place.store(entry.hash, std::memory_order_relaxed);
  } else if (found != Found::kWouldBlock && place.load(std::memory_order_relaxed) == entry.hash) {
    place.store(0, std::memory_order_relaxed);
  }
  return found;
}

CacheDirectory::Found CacheDirectory::read_file(const CacheEntry& entry, Buffer& room, size_t max_bytes, bool may_wait,
                                                Bytes& out) {
  if (directory_ < 0) return Found::kMiss;
  const File file(open_at(directory_, entry.path.c_str(), O_RDONLY | O_NONBLOCK));
  struct stat info{};
  if (!file || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return Found::kMiss;
  CacheEntryFile content;
  const auto size = static_cast<uint64_t>(info.st_size);
  Found found = CacheEntryFile::read(file.get(), size, entry, max_bytes, may_wait, room, content);
  if (found == Found::kHit) {
    const uint64_t known = mix_bits(entry.hash) ^ identity_of(info) ^ mix_bits(size);
    std::atomic<uint64_t>& place = checked_[known % checked_.size()];
    if (place.load(std::memory_order_relaxed) != known) {
      if (content.is_intact()) {
        place.store(known, std::memory_order_relaxed);
      } else {
        found = Found::kDamaged;
      }
    }
    out = content.payload();
  }
  if (found == Found::kDamaged) drop(entry);
  return found;
}

/// Deletes an entry that is damaged.
void CacheDirectory::drop(const CacheEntry& entry) {
  struct stat info{};
  if (fstatat(directory_, entry.path.c_str(), &info, 0) != 0) return;
  if (unlinkat(directory_, entry.path.c_str(), 0) == 0) give_back(counted_bytes(static_cast<uint64_t>(info.st_size)));
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
  struct stat old{};
  const uint64_t old_bytes = fstatat(directory_, entry.path.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0
                                 ? counted_bytes(static_cast<uint64_t>(old.st_size))
                                 : 0;
  const uint64_t more = bytes > old_bytes ? bytes - old_bytes : 0;
  if (!reserve(more)) return refuse();
  std::random_device random;
  const std::string leftover = std::string(kLeftovers) + "/" + std::to_string(process_id()) + "-" +
                               std::to_string(++last_leftover_) + "-" + std::to_string(random());
  int error = write_whole(leftover, entry, payload);
  if (error == 0) error = move_into_place(leftover, entry);
  if (error == 0) {
    give_back(old_bytes > bytes ? old_bytes - bytes : 0);
    return Admitted::kYes;
  }
  unlinkat(directory_, leftover.c_str(), 0);
  give_back(more);
  fail("an entry cannot be written, so nothing is added any more", error);
  return Admitted::kFailed;
}

/// Writes header, label and payload to a new file. 0, or the errno.
int CacheDirectory::write_whole(const std::string& path, const CacheEntry& entry, Bytes payload) const {
  const auto create = [&] { return open_at(directory_, path.c_str(), O_RDWR | O_CREAT | O_EXCL, 0666); };
  int fd = create();
  if (fd < 0 && errno == ENOENT && mkdirat(directory_, kLeftovers, 0777) == 0) fd = create();
  if (fd < 0) return errno;
  const File file(fd);
  lock_byte(fd, 0, F_WRLCK, false);  // says that the writer lives
  return CacheEntryFile::write(fd, entry, payload);
}

/// Renames a file to that of the entry. 0, or the errno.
int CacheDirectory::move_into_place(const std::string& from, const CacheEntry& entry) const {
  const auto move = [&] { return renameat(directory_, from.c_str(), directory_, entry.path.c_str()); };
  if (move() == 0) return 0;
  if (errno != ENOENT) return errno;
  if (mkdirat(directory_, entry.folder.c_str(), 0777) == 0) {
    const File name(open_at(directory_, (entry.folder + "/" + kStoreName).c_str(), O_WRONLY | O_CREAT, 0666));
    if (name && ::write(name.get(), entry.store.data(), entry.store.size()) < 0) return errno;
  } else if (errno == ENOENT) {  // somebody cleared the directory
    mkdirat(directory_, kCacheEntries, 0777);
    mkdirat(directory_, entry.folder.c_str(), 0777);
  }
  mkdirat(directory_, entry.path.substr(0, entry.path.rfind('/')).c_str(), 0777);
  return move() == 0 ? 0 : errno;
}

CacheDirectory::ClaimPtr CacheDirectory::try_claim(const CacheEntry& entry) {
  {
    const std::lock_guard lock(mutex_);
    if (!claimed_.insert(entry.hash).second) return nullptr;
    if (state_ >= 0 && has_locks_) {
      const int error = lock_byte(state_, kFirstEntryByte + static_cast<off_t>(entry.hash >> 2), F_WRLCK, false);
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
  if (state_ >= 0 && has_locks_) lock_byte(state_, kFirstEntryByte + static_cast<off_t>(hash >> 2), F_UNLCK, false);
}

}  // namespace zarrfeed
