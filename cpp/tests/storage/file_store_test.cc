// Chunk files: read with and without waiting, missing ones, and things that are no chunks.

#include "storage/file_store.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/stored_bytes.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::file_store_test {
namespace {

constexpr size_t kMaxBytes = 1 << 20;

std::vector<uint8_t> counting(size_t n) {
  std::vector<uint8_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(i * 7 + i / 256);
  return out;
}

/// A directory with a metadata file and an open source over it.
struct Store {
  Store() {
    write_file(root() / ".zarray", counting(3));
    source.open();
  }
  [[nodiscard]] std::filesystem::path root() const { return directory.path() / "array"; }
  void put(const std::string& key, const std::vector<uint8_t>& bytes) const { write_file(root() / key, bytes); }

  TempDir directory;
  FileStore source{root().string(), ".zarray", kMaxBytes};
};

struct Result {
  ReadStatus status;
  std::vector<uint8_t> bytes;
};

Result finish(ReadStatus status, const Buffer& out, const PendingRead& pending) {
  if (status == ReadStatus::kMissing) return {status, {}};
  CHECK_EQ(pending.fd, -1);
  CHECK_EQ(pending.done, pending.size);
  CHECK(out.capacity() >= pending.size);
  return {status, {out.data(), out.data() + pending.size}};
}

/// As the engine reads: from the page cache, and where that would wait, on.
Result read(const FileStore& source, const std::string& key) {
  Buffer out;
  PendingRead pending;
  ReadStatus status = source.read_cached(key, out, pending);
  if (status == ReadStatus::kWouldBlock) status = source.read_blocking(key, out, pending);
  return finish(status, out, pending);
}

Result read_blocking(const FileStore& source, const std::string& key) {
  Buffer out;
  PendingRead pending;
  const ReadStatus status = source.read_blocking(key, out, pending);
  return finish(status, out, pending);
}

/// Both ways to read must refuse, with this errno in the error (0: not an I/O error).
void check_refused(const FileStore& source, const std::string& key, ErrorKind kind, const std::string& part,
                   int errno_value) {
  const Context context("key " + key);
  for (const auto& way : {read, read_blocking}) {
    try {
      way(source, key);
    } catch (const Error& error) {
      CHECK_EQ(error.kind(), kind);
      CHECK_EQ(error.errno_value(), errno_value);
      if (std::string(error.what()).find(part) == std::string::npos) FAIL(error.what());
      continue;
    }
    FAIL("was read");
  }
}

}  // namespace

TEST(both_ways_to_read_give_the_bytes_of_the_file) {
  const Store store;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{100'001}, kMaxBytes}) {
    const std::vector<uint8_t> bytes = counting(size);
    store.put("0.0", bytes);
    CHECK(read(store.source, "0.0").bytes == bytes);
    CHECK(read_blocking(store.source, "0.0").bytes == bytes);
    CHECK_EQ(read(store.source, "0.0").status, ReadStatus::kOk);
  }
}

TEST(keys_may_have_directories) {
  const Store store;
  store.put("c/1/22/3", counting(50));
  CHECK(read(store.source, "c/1/22/3").bytes == counting(50));
  CHECK_EQ(read(store.source, "c/1/22/4").status, ReadStatus::kMissing);
  CHECK_EQ(read(store.source, "c/2/0/0").status, ReadStatus::kMissing);
}

TEST(a_file_that_is_not_in_the_page_cache_is_left_to_the_waiting_read) {
  const Store store;
  const std::vector<uint8_t> bytes = counting(300'000);
  store.put("0", bytes);
  const bool cold = drop_from_page_cache(store.root());
  Buffer out;
  PendingRead pending;
  const ReadStatus status = store.source.read_cached("0", out, pending);
  if (cold) CHECK_EQ(status, ReadStatus::kWouldBlock);
  if (status == ReadStatus::kWouldBlock) {
    CHECK(pending.fd >= 0);
    CHECK_EQ(pending.size, bytes.size());
    CHECK(pending.done < pending.size);
    CHECK_EQ(store.source.read_blocking("0", out, pending), ReadStatus::kOk);
  }
  CHECK((std::vector<uint8_t>{out.data(), out.data() + pending.size}) == bytes);
}

TEST(a_waiting_read_goes_on_where_the_other_stopped) {
  const Store store;
  const std::vector<uint8_t> bytes = counting(10'000);
  store.put("0", bytes);
  Buffer out;
  const MutableBytes room = out.reserve(bytes.size());
  std::memset(room.data(), 0, room.size());
  PendingRead pending;
  pending.fd = open((store.root() / "0").c_str(), O_RDONLY | O_CLOEXEC);
  pending.size = bytes.size();
  pending.done = 6'000;
  CHECK_EQ(store.source.read_blocking("0", out, pending), ReadStatus::kOk);
  CHECK_EQ(out.data()[5'999], uint8_t{0});
  CHECK(std::equal(bytes.begin() + 6'000, bytes.end(), out.data() + 6'000));
}

TEST(a_file_that_shrinks_while_it_is_read_is_an_error) {
  const Store store;
  store.put("0", counting(1'000));
  Buffer out;
  out.reserve(1'500);
  PendingRead pending;
  pending.fd = open((store.root() / "0").c_str(), O_RDONLY | O_CLOEXEC);
  pending.size = 1'500;  // what it was when it was opened
  CHECK_THROWS(kIo, "ended at byte 1000 of 1500", store.source.read_blocking("0", out, pending));
}

TEST(a_file_that_grows_while_it_is_read_gives_what_it_was) {
  const Store store;
  store.put("0", counting(2'000));
  Buffer out;
  out.reserve(1'500);
  PendingRead pending;
  pending.fd = open((store.root() / "0").c_str(), O_RDONLY | O_CLOEXEC);
  pending.size = 1'500;
  CHECK_EQ(store.source.read_blocking("0", out, pending), ReadStatus::kOk);
  CHECK(std::equal(out.data(), out.data() + 1'500, counting(2'000).begin()));
}

TEST(a_missing_chunk_is_missing_and_a_deleted_store_is_an_error) {
  Store store;
  store.put("0.0", counting(10));
  CHECK_EQ(read(store.source, "0.1").status, ReadStatus::kMissing);
  CHECK_EQ(read_blocking(store.source, "0.1").status, ReadStatus::kMissing);
  std::filesystem::remove_all(store.root());
  check_refused(store.source, "0.1", ErrorKind::kIo, "is gone: the array was deleted or moved", ENOENT);
  check_refused(store.source, "0.0", ErrorKind::kIo, "is gone", ENOENT);
  CHECK_THROWS(kIo, "cannot be opened", store.source.open());
}

TEST(a_store_that_was_deleted_and_made_anew_is_another_one_until_it_is_opened) {
  Store store;
  std::filesystem::remove_all(store.root());
  write_file(store.root() / ".zarray", counting(3));
  store.put("0", counting(10));
  check_refused(store.source, "0", ErrorKind::kIo, "is gone", ENOENT);
  store.source.open();
  CHECK(read(store.source, "0").bytes == counting(10));
}

TEST(opening_a_directory_without_the_metadata_file_is_an_error) {
  const TempDir directory;
  FileStore source(directory.path().string(), "zarr.json", kMaxBytes);
  CHECK_THROWS(kIo, "zarr.json is gone", source.open());
  write_file(directory.path() / "zarr.json", {});
  source.open();
}

TEST(a_file_in_the_place_of_the_array_is_an_error) {
  const TempDir directory;
  write_file(directory.path() / "array", counting(10));
  FileStore source((directory.path() / "array").string(), "zarr.json", kMaxBytes);
  CHECK_THROWS(kIo, "cannot be opened: Not a directory", source.open());
}

TEST(what_is_no_regular_file_is_refused_and_never_waited_for) {
  const Store store;
  std::filesystem::create_directory(store.root() / "directory");
  check_refused(store.source, "directory", ErrorKind::kIo, "is a directory, not a chunk", EISDIR);
  CHECK_EQ(mkfifo((store.root() / "fifo").c_str(), 0600), 0);
  check_refused(store.source, "fifo", ErrorKind::kIo, "is not a regular file", EINVAL);
  std::filesystem::create_symlink("/dev/zero", store.root() / "device");
  check_refused(store.source, "device", ErrorKind::kIo, "is not a regular file", EINVAL);
  std::filesystem::create_symlink("loop", store.root() / "loop");
  check_refused(store.source, "loop", ErrorKind::kIo, "cannot be opened", ELOOP);
  store.put("file", counting(1));
  check_refused(store.source, "file/0", ErrorKind::kIo, "cannot be opened", ENOTDIR);
}

TEST(a_socket_in_the_place_of_a_chunk_is_refused) {
  const Store store;
  const std::string path = (store.root() / "s").string();
  sockaddr_un address{};
  if (path.size() >= sizeof(address.sun_path)) return;  // a long TMPDIR
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), &address.sun_path[0]);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  check_refused(store.source, "s", ErrorKind::kIo, "cannot be opened", ENXIO);
  close(fd);
}

TEST(a_symbolic_link_to_a_chunk_is_read_and_one_to_nothing_is_an_error) {
  const Store store;
  store.put("real", counting(20));
  std::filesystem::create_symlink("real", store.root() / "0");
  std::filesystem::create_symlink("nothing", store.root() / "1");
  CHECK(read(store.source, "0").bytes == counting(20));
  CHECK_THROWS(kIo, "1 is a link to nothing that is there", read(store.source, "1"));
  // a directory on a disk that is not mounted: what lies below it is not missing
  std::filesystem::create_directory(store.root() / "c");
  std::filesystem::create_symlink("/nowhere/at/all", store.root() / "c" / "1");
  CHECK_THROWS(kIo, "c/1 is a link to nothing that is there", read(store.source, "c/1/0/2"));
  CHECK_EQ(read(store.source, "c/2/0/2").status, ReadStatus::kMissing);
  store.put("c/3/0", counting(3));
  CHECK_EQ(read(store.source, "c/3/1").status, ReadStatus::kMissing);
}

TEST(permission_denied_is_an_error_with_its_errno) {
  if (geteuid() == 0) return;  // root may read anything
  const Store store;
  store.put("0", counting(10));
  std::filesystem::permissions(store.root() / "0", std::filesystem::perms::none);
  check_refused(store.source, "0", ErrorKind::kIo, "Permission denied", EACCES);
}

TEST(a_file_that_is_too_large_to_be_a_chunk_is_refused_without_reading_it) {
  const Store store;
  store.put("0", {});
  std::filesystem::resize_file(store.root() / "0", kMaxBytes + 1);
  check_refused(store.source, "0", ErrorKind::kCorrupt, "has 1048577 bytes, at most 1048576 are plausible", 0);
  std::filesystem::resize_file(store.root() / "0", uintmax_t{1} << 40);  // sparse; nothing of that size is allocated
  check_refused(store.source, "0", ErrorKind::kCorrupt, "has 1099511627776 bytes", 0);
  std::filesystem::resize_file(store.root() / "0", kMaxBytes);
  CHECK_EQ(read(store.source, "0").bytes.size(), kMaxBytes);
}

TEST(no_descriptor_is_left_open) {
  const size_t before = open_descriptors();
  {
    Store store;
    store.put("0", counting(10));
    std::filesystem::create_directory(store.root() / "directory");
    for (int i = 0; i < 20; ++i) {
      read(store.source, "0");
      read(store.source, "missing");
      CHECK_THROWS(kIo, "directory", read(store.source, "directory"));
      store.source.open();
      drop_from_page_cache(store.root());
      Buffer out;
      PendingRead given_up;
      store.source.read_cached("0", out, given_up);
    }
    store.source.close();
    store.source.close();
  }
  CHECK_EQ(open_descriptors(), before);
}

TEST(a_pending_read_has_one_owner) {
  const size_t before = open_descriptors();
  {
    PendingRead a;
    a.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    a.size = 10;
    a.done = 4;
    const int fd = a.fd;
    PendingRead b(std::move(a));
    CHECK_EQ(a.fd, -1);  // NOLINT(bugprone-use-after-move): what it leaves is the point
    CHECK_EQ(b.fd, fd);
    PendingRead c;
    c.fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    c = std::move(b);
    CHECK_EQ(c.fd, fd);
    CHECK_EQ(c.size, size_t{10});
    CHECK_EQ(c.done, size_t{4});
    CHECK_EQ(open_descriptors(), before + 1);
  }
  CHECK_EQ(open_descriptors(), before);
}

TEST(threads_may_read_at_once) {
  const Store store;
  for (int i = 0; i < 8; ++i) store.put(std::to_string(i), counting(1000 + static_cast<size_t>(i)));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Buffer out;
      for (int i = 0; i < 400; ++i) {
        PendingRead pending;
        ReadStatus status = store.source.read_cached(std::to_string(i % 9), out, pending);
        if (status == ReadStatus::kWouldBlock) status = store.source.read_blocking(std::to_string(i % 9), out, pending);
        if (i % 9 == 8 ? status != ReadStatus::kMissing : pending.size != 1000 + static_cast<size_t>(i % 9)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

namespace {

/// Two parts of a chunk behind its first 16 bytes; calls `between` once these were read.
class TwoParts : public ChunkParts {
 public:
  explicit TwoParts(std::function<void()> between = [] {}) : between_(std::move(between)) {}
  [[nodiscard]] Found find(Bytes first, size_t) const override {
    if (first.empty()) return {.first = 16};
    between_();
    return {.ranges = {{100, 130}, {500, 900}}};
  }
  static constexpr size_t kBytes = 16 + 30 + 400;

 private:
  const std::function<void()> between_;
};

/// Checks that what was read of a chunk are the two parts.
void check_parts(const ReadResult& result, const std::vector<uint8_t>& chunk) {
  CHECK_EQ(result.status, ReadStatus::kOk);
  const StoredBytes stored(result.bytes, result.parts);
  CHECK_EQ(stored.size(), chunk.size());
  CHECK_EQ(stored.bytes_read(), TwoParts::kBytes);
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 16}, {100, 130}, {500, 900}}) {
    const Bytes part = stored.from(begin);
    CHECK_EQ(part.size(), end - begin);
    CHECK(std::equal(part.begin(), part.end(), chunk.begin() + static_cast<std::ptrdiff_t>(begin)));
  }
  CHECK(stored.from(16).empty() && stored.from(499).empty() && stored.from(900).empty());
}

ReadResult read_blocking(FileStore& store, const ByteRange& range, Buffer& room) {
  ReadResult result;
  std::vector<ReadRequest> one;
  one.push_back({.key = "0", .range = range, .room = &room, .done = [&](ReadResult got) { result = std::move(got); }});
  store.read(std::move(one));
  return result;
}

}  // namespace

TEST(parts_of_a_file_and_of_a_range_of_it_are_read_alone) {
  Store store;
  FileStore& source = store.source;
  const std::vector<uint8_t> bytes = counting(5000);
  store.put("0", bytes);
  const auto parts = std::make_shared<TwoParts>();
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1234}}) {
    ByteRange range = offset == 0 ? ByteRange{} : ByteRange::at(offset, 2000);
    range.parts = parts;
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(offset);
    const std::vector<uint8_t> chunk(begin, offset == 0 ? bytes.end() : begin + 2000);
    Buffer room;
    check_parts(read_blocking(source, range, room), chunk);
    CHECK(room.capacity() < 1000);
    Buffer other;
    const ReadResult tried = source.try_read("0", range, other);
    if (tried.status != ReadStatus::kWouldBlock) check_parts(tried, chunk);
  }
}

TEST(parts_are_of_one_file_though_another_one_takes_its_place_between_two_reads) {
  Store store;
  FileStore& source = store.source;
  const std::vector<uint8_t> old = counting(5000);
  store.put("0", old);
  const auto replace = [&] {
    store.put("next", std::vector<uint8_t>(5000, 1));
    std::filesystem::rename(store.root() / "next", store.root() / "0");
  };
  Buffer room;
  check_parts(read_blocking(source, ByteRange::all(std::make_shared<TwoParts>(replace)), room), old);
}

TEST(a_file_that_is_written_to_between_two_reads_of_parts_is_no_chunk) {
  const auto rewrite = [](const Store& store) {
    const int fd = open((store.root() / "0").c_str(), O_WRONLY);
    const timespec later[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
    const std::vector<uint8_t> other(5000, 1);
    CHECK_EQ(pwrite(fd, other.data(), other.size(), 0), ssize_t{5000});
    CHECK_EQ(futimens(fd, later), 0);  // a clock is coarser than two writes
    close(fd);
  };
  const auto shorten = [](const Store& store) { std::filesystem::resize_file(store.root() / "0", 600); };
  {
    Store store;
    FileStore& source = store.source;
    store.put("0", counting(5000));
    Buffer room;
    const auto parts = std::make_shared<TwoParts>([&] { rewrite(store); });
    const ReadResult result = read_blocking(source, ByteRange::all(parts), room);
    CHECK(result.error && std::string(result.error->what()) == "was changed while parts of it were read");
    CHECK_EQ(result.error->errno_value(), EIO);
  }
  {
    Store store;
    FileStore& source = store.source;
    store.put("0", counting(5000));
    Buffer room;
    const ReadResult whole = read_blocking(source, {}, room);
    ByteRange range = ByteRange::at(0, 4000, whole.version);
    range.parts = std::make_shared<TwoParts>([&] { rewrite(store); });
    CHECK_EQ(read_blocking(source, range, room).status, ReadStatus::kChanged);
  }
  {
    Store store;
    FileStore& source = store.source;
    store.put("0", counting(5000));
    Buffer room;
    const auto parts = std::make_shared<TwoParts>([&] { shorten(store); });
    const ReadResult result = read_blocking(source, ByteRange::all(parts), room);
    CHECK(result.error &&
          std::string(result.error->what()) == "ended at byte 600 of 5000: it was changed while being read");
  }
}

}  // namespace zarrfeed::testing::file_store_test
