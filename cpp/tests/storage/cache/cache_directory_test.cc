// The directory of the node cache: what is admitted and read, damage, limits, killed writers, claims, unusable directories.

#include "storage/cache/cache_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/buffer.h"
#include "tests/support/check.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::cache_directory_test {
namespace {

constexpr uint64_t kLimit = 64 << 20;
constexpr size_t kMaxBytes = 1 << 20;

using Found = CacheDirectory::Found;
using Admitted = CacheDirectory::Admitted;

std::vector<uint8_t> content(size_t number, size_t size = 5000) {
  std::vector<uint8_t> out(size);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(i * 7 + number * 13 + i / 256);
  return out;
}

CacheEntry entry(size_t number, const std::string& version = "v1") {
  return CacheEntry({.store = "s3://bucket", .object = "a/c/" + std::to_string(number), .version = version});
}

std::optional<std::vector<uint8_t>> get(CacheDirectory& cache, const CacheEntry& wanted, Found expected = Found::kHit) {
  Buffer room;
  PartsRead out;
  const Found found = cache.read(wanted, room, kMaxBytes, true, out);
  CHECK_EQ(found, expected);
  if (found != Found::kHit) return std::nullopt;
  return std::vector<uint8_t>(out.bytes.begin(), out.bytes.end());
}

/// The file of the one entry that there is.
std::filesystem::path only_file(const CacheDirectory& cache) {
  std::filesystem::path found;
  for (const auto& item : std::filesystem::recursive_directory_iterator(cache.path() + "/entries")) {
    if (item.is_regular_file() && item.path().filename() != "store") found = item.path();
  }
  CHECK(!found.empty());
  return found;
}

/// A path below the directory of the cache.
std::string inside(const CacheDirectory& cache, const std::filesystem::path& path) {
  return path.lexically_relative(cache.path()).string();
}

int lock_first_byte(int fd, int command, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  if (fcntl(fd, command, &lock) != 0) return errno;
  return command == F_OFD_GETLK && lock.l_type != F_UNLCK ? EAGAIN : 0;
}

/// Files that are being written now: how many are locked by their writers, and how many are not.
struct HalfWritten {
  size_t locked = 0;
  size_t unlocked = 0;
};

void find_half_written(const CacheDirectory& cache, size_t size, HalfWritten& seen) {
  std::error_code gone;
  for (std::filesystem::directory_iterator item(cache.path() + "/tmp", gone), end; !gone && item != end;
       item.increment(gone)) {
    const int fd = open(item->path().c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) continue;
    const off_t before = lseek(fd, 0, SEEK_END);
    const int held = lock_first_byte(fd, F_OFD_GETLK, F_WRLCK);
    const off_t after = lseek(fd, 0, SEEK_END);
    close(fd);
    if (before == 0 || after >= static_cast<off_t>(size)) continue;  // not locked yet, or not any more
    ++(held == EAGAIN ? seen.locked : seen.unlocked);
  }
}

size_t leftovers(const CacheDirectory& cache) {
  size_t count = 0;
  for (const auto& item : std::filesystem::directory_iterator(cache.path() + "/tmp")) count += item.exists() ? 1 : 0;
  return count;
}

/// A path in a directory that the test deletes.
struct TempCache {
  TempDir directory;
  std::string path = (directory.path() / "cache").string();
};

}  // namespace

TEST(what_was_admitted_is_read_by_every_process_that_opens_the_directory) {
  const TempCache temp;
  const auto first = CacheDirectory::open(temp.path, kLimit);
  get(*first, entry(1), Found::kMiss);
  for (size_t i = 0; i < 20; ++i) CHECK_EQ(first->admit(entry(i), content(i)), Admitted::kYes);
  const auto second = CacheDirectory::open(temp.path, kLimit);
  for (size_t i = 0; i < 20; ++i) {
    CHECK_EQ(*get(*first, entry(i)), content(i));
    CHECK_EQ(*get(*second, entry(i)), content(i));
  }
  CHECK_EQ(second->used_bytes(), uint64_t{20 * 8192});
  CHECK_EQ(leftovers(*first), size_t{0});
  CHECK_EQ(first->trouble(), std::string());
}

TEST(stores_objects_and_ranges_are_told_apart) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  const CacheKey keys[] = {{.store = "a", .object = "x", .version = "1"},
                           {.store = "b", .object = "x", .version = "1"},
                           {.store = "a", .object = "y", .version = "1"},
                           {.store = "a", .object = "x", .version = "1", .range = ByteRange::at(0, 100)},
                           {.store = "a", .object = "x", .version = "1", .range = ByteRange::at(100, 100)},
                           {.store = "a", .object = "x", .version = "1", .range = ByteRange::last(100)},
                           {.store = "a", .object = "", .version = "1"}};
  size_t number = 0;
  for (const CacheKey& key : keys) CHECK_EQ(cache->admit(CacheEntry(key), content(++number, 100)), Admitted::kYes);
  number = 0;
  for (const CacheKey& key : keys) CHECK_EQ(*get(*cache, CacheEntry(key)), content(++number, 100));
}

TEST(an_entry_of_another_version_is_a_miss_and_is_replaced) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  for (const char* version : {"v1", "v2", "a version of another length", "v1"}) {
    get(*cache, entry(1, version), Found::kMiss);
    CHECK_EQ(cache->admit(entry(1, version), content(version[1], 3000)), Admitted::kYes);
    CHECK_EQ(*get(*cache, entry(1, version)), content(version[1], 3000));
    CHECK_EQ(cache->used_bytes(), uint64_t{4096});
  }
}

TEST(entries_are_listed_by_store_and_prefix_and_damaged_ones_are_not) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  CHECK(cache->list("s3://bucket", "", 1000).entries.empty());
  for (size_t i = 0; i < 40; ++i) CHECK_EQ(cache->admit(entry(i), content(i)), Admitted::kYes);
  const CacheKey part{.store = "s3://bucket", .object = "b/c/0", .version = "v2", .range = ByteRange::at(100, 50)};
  const CacheKey index{.store = "s3://bucket", .object = "b/c/1", .version = "v2", .range = ByteRange::last(20)};
  const CacheKey other{.store = "s3://other", .object = "a/c/0", .version = "v1"};
  const CacheKey long_key{.store = "s3://bucket", .object = "long/" + std::string(3000, 'x'), .version = "v1"};
  for (const CacheKey& key : {part, index, other, long_key}) {
    CHECK_EQ(cache->admit(CacheEntry(key), content(1, key.range.size)), Admitted::kYes);
  }
  const auto listed = cache->list("s3://bucket", "a/", 1000);
  CHECK_EQ(listed.share, 1.0);
  CHECK_EQ(listed.entries.size(), size_t{40});
  for (const auto& [info, counted] : listed.entries) {
    CHECK_EQ(info.key.version, std::string("v1"));
    CHECK_EQ(info.bytes, uint64_t{5000});
    CHECK_EQ(counted, uint64_t{8192});
  }
  for (const auto& [info, counted] : cache->list("s3://bucket", "b/", 1000).entries) {
    const CacheKey& expected = info.key.object == part.object ? part : index;
    CHECK_EQ(info.key.range.offset, expected.range.offset);
    CHECK_EQ(info.key.range.size, expected.range.size);
    CHECK(info.key.range.kind == expected.range.kind);
    CHECK_EQ(counted, uint64_t{4096});
  }
  CHECK_EQ(cache->list("s3://bucket", "long/", 1000).entries.size(), size_t{1});
  const auto sample = cache->list("s3://bucket", "", 5);
  CHECK(sample.entries.size() >= 5 && sample.entries.size() < 43);
  CHECK(sample.share > 0 && sample.share < 1);

  size_t number = 0;
  for (const auto& item : std::filesystem::recursive_directory_iterator(cache->path() + "/entries")) {
    if (!item.is_regular_file() || item.path().filename() == "store") continue;
    if (number++ % 2 == 0) std::filesystem::resize_file(item.path(), 1 + number % 60);
  }
  CHECK(cache->list("s3://bucket", "", 1000).entries.size() <= 22);
}

TEST(a_new_version_has_room_where_the_old_one_was_though_the_cache_is_full) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, 8192);
  CHECK_EQ(cache->admit(entry(1), content(1)), Admitted::kYes);
  CHECK_EQ(cache->admit(entry(2), content(2)), Admitted::kFull);
  CHECK(!cache->admits());
  CHECK_EQ(cache->admit(entry(1, "v2"), content(3)), Admitted::kYes);
  CHECK_EQ(*get(*cache, entry(1, "v2")), content(3));
  CHECK_EQ(cache->used_bytes(), uint64_t{8192});
}

TEST(entries_are_admitted_until_the_limit_and_stay) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, 10 * 8192 + 100);
  for (size_t i = 0; i < 30; ++i)
    CHECK_EQ(cache->admit(entry(i), content(i)), i < 10 ? Admitted::kYes : Admitted::kFull);
  for (size_t i = 0; i < 30; ++i) get(*cache, entry(i), i < 10 ? Found::kHit : Found::kMiss);
  const auto tiny = CacheDirectory::open(temp.path, 100);
  CHECK_EQ(tiny->admit(entry(99), content(99)), Admitted::kFull);
  CHECK_EQ(*get(*tiny, entry(3)), content(3));
}

TEST(every_kind_of_damage_is_found_once_and_is_a_miss) {
  for (int kind = 0; kind < 8; ++kind) {
    const Context context("damage " + std::to_string(kind));
    const TempCache temp;
    {
      const auto writer = CacheDirectory::open(temp.path, kLimit);
      CHECK_EQ(writer->admit(entry(1), content(1)), Admitted::kYes);
    }
    const auto cache = CacheDirectory::open(temp.path, kLimit);
    const auto path = only_file(*cache);
    std::vector<uint8_t> bytes = read_file(path);
    if (kind == 0) bytes.back() ^= 1;
    if (kind == 1) bytes[bytes.size() / 2] ^= 0x80;
    if (kind == 2) bytes[0] ^= 1;
    if (kind == 3) bytes[20] ^= 1;
    if (kind == 4) bytes[40] ^= 1;
    if (kind == 5) bytes.resize(bytes.size() / 2);
    if (kind == 6) bytes.resize(10);
    if (kind == 7) bytes.assign(bytes.size(), 0);
    write_file(path, bytes);
    CHECK_THROWS(kCorrupt, path.string(), cache->check(inside(*cache, path)));
    get(*cache, entry(1), Found::kDamaged);
    get(*cache, entry(1), Found::kMiss);
    CHECK(!cache->contains(entry(1)));
    CHECK_EQ(cache->admit(entry(1), content(1)), Admitted::kYes);
    CHECK_EQ(*get(*cache, entry(1)), content(1));
  }
}

TEST(an_entry_larger_than_any_chunk_is_not_read) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  CHECK_EQ(cache->admit(entry(1), content(1)), Admitted::kYes);
  std::filesystem::resize_file(only_file(*cache), uint64_t{1} << 40);
  get(*cache, entry(1), Found::kDamaged);
  CHECK_EQ(cache->used_bytes(), uint64_t{0});
}

TEST(the_key_of_an_entry_is_in_its_file) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  const CacheKey key{.store = "s3://b", .object = "a:/c 1", .version = "x:1", .range = ByteRange::at(7, 5)};
  CHECK_EQ(cache->admit(CacheEntry(key), content(1, 5)), Admitted::kYes);
  const CacheEntryInfo info = cache->check(inside(*cache, only_file(*cache))).value();
  CHECK_EQ(info.key.store, key.store);
  CHECK_EQ(info.key.object, key.object);
  CHECK_EQ(info.key.version, key.version);
  CHECK_EQ(info.key.range.offset, uint64_t{7});
  CHECK_EQ(info.key.range.size, uint64_t{5});
  CHECK_EQ(info.bytes, uint64_t{5});
}

TEST(a_directory_of_something_else_is_refused_and_left_alone) {
  const TempCache temp;
  write_file(temp.path + "/thesis.txt", content(1));
  CHECK_THROWS(kConfig, "thesis.txt", CacheDirectory::open(temp.path, kLimit));
  CHECK_EQ(read_file(temp.path + "/thesis.txt"), content(1));
  CHECK_THROWS(kConfig, "not a directory", CacheDirectory::open(temp.path + "/thesis.txt", kLimit));
  const TempCache later;
  write_file(later.path + "/ZARRFEED-CACHE-2", content(1));
  CHECK_THROWS(kConfig, "another version", CacheDirectory::open(later.path, kLimit));
  const TempCache mounted;
  std::filesystem::create_directories(mounted.path + "/lost+found");
  CHECK_EQ(CacheDirectory::open(mounted.path, kLimit)->trouble(), std::string());
}

TEST(a_directory_that_cannot_be_written_serves_what_it_has) {
  const TempCache temp;
  CHECK_EQ(CacheDirectory::open(temp.path, kLimit)->admit(entry(1), content(1)), Admitted::kYes);
  // Root may write anywhere, so a file stands in for a file system that is read-only.
  std::filesystem::remove(temp.path + "/state");
  std::filesystem::create_directory(temp.path + "/state");
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  CHECK(cache->trouble().find("nothing is added") != std::string::npos);
  CHECK_EQ(*get(*cache, entry(1)), content(1));
  CHECK(!cache->admits());
  CHECK_EQ(cache->admit(entry(2), content(2)), Admitted::kFailed);
  CHECK(cache->try_claim(entry(2)) != nullptr);
}

TEST(a_directory_that_cannot_be_made_is_a_cache_without_entries) {
  const auto cache = CacheDirectory::open("/proc/no/such/cache", kLimit);
  CHECK(cache->trouble().find("cannot be made") != std::string::npos);
  get(*cache, entry(1), Found::kMiss);
  CHECK_EQ(cache->admit(entry(1), content(1)), Admitted::kFailed);
  CHECK(!cache->contains(entry(1)));
}

TEST(a_full_disk_ends_admission_and_leaves_nothing) {
  const TempCache temp;
  const int result = result_of_child([&] {
    const auto cache = CacheDirectory::open(temp.path, kLimit);
    CHECK_EQ(cache->admit(entry(1), content(1)), Admitted::kYes);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit small{16384, 16384};  // a file that grows further is an error, as on a disk that is full
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK_EQ(cache->admit(entry(2), content(2, 100000)), Admitted::kFailed);
    CHECK(cache->trouble().find("cannot be written") != std::string::npos);
    CHECK(!cache->admits());
    CHECK_EQ(*get(*cache, entry(1)), content(1));
    CHECK_EQ(cache->used_bytes(), uint64_t{8192});
    return 0;
  });
  CHECK_EQ(result, 0);
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  CHECK_EQ(leftovers(*cache), size_t{0});
  get(*cache, entry(2), Found::kMiss);
}

TEST(a_claim_excludes_threads_and_processes_until_its_holder_is_dead) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  auto claim = cache->try_claim(entry(1));
  CHECK(claim != nullptr);
  CHECK(cache->try_claim(entry(1)) == nullptr);
  CHECK(cache->try_claim(entry(2)) != nullptr);
  const auto other = CacheDirectory::open(temp.path, kLimit);  // excluded as another process is
  CHECK(other->try_claim(entry(1)) == nullptr);
  CHECK(other->try_claim(entry(2)) != nullptr);
  claim.reset();
  CHECK(other->try_claim(entry(1)) != nullptr);
  int ready[2];
  CHECK_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto own = CacheDirectory::open(temp.path, kLimit);
    const auto held = own->try_claim(entry(7));
    const char byte = held != nullptr ? 1 : 0;
    if (write(ready[1], &byte, 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  CHECK_EQ(read(ready[0], &byte, 1), ssize_t{1});
  CHECK_EQ(byte, char{1});
  CHECK(cache->try_claim(entry(7)) == nullptr);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(cache->try_claim(entry(7)) != nullptr);
  close(ready[0]);
  close(ready[1]);
}

TEST(writers_that_are_killed_leave_no_bad_entry_and_a_counter_that_is_mended) {
  const TempCache temp;
  const int64_t kills = 10 * stress();
  size_t number = 0;
  for (int64_t round = 0; round < kills; ++round) {
    int ready[2];
    CHECK_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto own = CacheDirectory::open(temp.path, kLimit);
      for (size_t i = 0;; ++i) {
        own->admit(entry(i % 200), content(i % 200, 20000 + i % 200));
        std::filesystem::remove(own->path() + "/no such file");
        if (i == 0 && write(ready[1], "x", 1) != 1) _exit(1);
        if (i % 200 == 199) own->clear("s3://bucket");
      }
    }
    char byte = 0;
    CHECK_EQ(read(ready[0], &byte, 1), ssize_t{1});
    std::this_thread::sleep_for(std::chrono::microseconds(round * 977 % 5000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    const auto cache = CacheDirectory::open(temp.path, kLimit);
    CHECK_EQ(leftovers(*cache), size_t{0});
    Buffer room;
    PartsRead out;
    for (size_t i = 0; i < 200; ++i) {
      const Found found = cache->read(entry(i), room, kMaxBytes, true, out);
      CHECK(found == Found::kHit || found == Found::kMiss);
      if (found == Found::kHit)
        CHECK_EQ(std::vector<uint8_t>(out.bytes.begin(), out.bytes.end()), content(i, 20000 + i));
      number += found == Found::kHit ? 1 : 0;
    }
    const uint64_t counted = cache->used_bytes();
    CHECK_EQ(counted, cache->recount());
  }
  CHECK(number > 0);
}

TEST(threads_admit_and_read_at_once_and_the_counter_is_exact) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  std::atomic<int> bad{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Buffer room;
      PartsRead out;
      for (size_t i = 0; i < 200; ++i) {
        const size_t number = (i * 7 + t * 50) % 200;
        const Found found = cache->read(entry(number), room, kMaxBytes, i % 2 == 0, out);
        if (found == Found::kHit && std::vector<uint8_t>(out.bytes.begin(), out.bytes.end()) != content(number)) ++bad;
        if (found == Found::kDamaged) ++bad;
        if (found != Found::kMiss) continue;
        const auto claim = cache->try_claim(entry(number));
        if (claim == nullptr || cache->contains(entry(number))) continue;
        if (cache->admit(entry(number), content(number)) != Admitted::kYes) ++bad;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(bad.load(), 0);
  CHECK_EQ(cache->used_bytes(), cache->recount());
}

TEST(clearing_deletes_the_entries_of_one_store_or_of_all) {
  const TempCache temp;
  const auto cache = CacheDirectory::open(temp.path, kLimit);
  const CacheEntry other({.store = "gs://other", .object = "x", .version = "1"});
  CHECK_EQ(cache->admit(entry(1), content(1)), Admitted::kYes);
  CHECK_EQ(cache->admit(other, content(2)), Admitted::kYes);
  CHECK_EQ(cache->clear("s3://bucket"), uint64_t{8192});
  get(*cache, entry(1), Found::kMiss);
  CHECK_EQ(*get(*cache, other), content(2));
  CHECK_EQ(cache->clear(""), uint64_t{8192});
  CHECK_EQ(cache->used_bytes(), uint64_t{0});
  CHECK_EQ(cache->admit(entry(1), content(1)), Admitted::kYes);
}

TEST(the_counter_is_neither_read_nor_written_while_another_process_has_it) {
  const TempDir directory;
  const auto cache = CacheDirectory::open(directory.path() / "cache", kLimit);
  CHECK_EQ(cache->admit(entry(0), content(0)), Admitted::kYes);
  // Opened anew, the file is another description, to which locks of this process are those of another one.
  const int state = open((cache->path() + "/state").c_str(), O_RDWR | O_CLOEXEC);
  CHECK_EQ(lock_first_byte(state, F_OFD_SETLK, F_WRLCK), 0);
  std::atomic<bool> ended{false};
  std::thread writer([&] {
    if (cache->admit(entry(1), content(1)) == Admitted::kYes) ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // however long: it cannot end
  const bool has_waited = !ended;
  close(state);
  writer.join();
  CHECK(has_waited);
  CHECK(ended);
  CHECK_EQ(cache->used_bytes(), cache->recount());
}

TEST(a_writer_holds_a_lock_on_what_it_writes) {
  const TempDir directory;
  const auto cache = CacheDirectory::open(directory.path() / "cache", uint64_t{4} << 30);
  const std::vector<uint8_t> large = content(1, size_t{64} << 20);
  HalfWritten seen;
  for (size_t number = 0; number < 50 && seen.locked + seen.unlocked == 0; ++number) {
    std::atomic<bool> ended{false};
    std::thread writer([&] {
      cache->admit(entry(number), large);
      ended = true;
    });
    while (!ended && seen.locked + seen.unlocked == 0) find_half_written(*cache, large.size(), seen);
    writer.join();
    cache->clear("");
  }
  CHECK_EQ(seen.unlocked, size_t{0});
  CHECK(seen.locked > 0);
}

}  // namespace zarrfeed::testing::cache_directory_test
