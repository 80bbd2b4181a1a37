// The folder of the node cache on a machine that others use: whose it may be, what is closed, what is believed, and that
// nothing outside of it is touched. Tests that act as two users need root; without it they say so and prove the rest.

#include "storage/cache/cache_folder.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "storage/cache/cache_directory.h"
#include "tests/support/check.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::cache_folder_test {
namespace {

namespace fs = std::filesystem;

using Found = CacheDirectory::Found;
using Admitted = CacheDirectory::Admitted;

constexpr uint64_t kLimit = 1 << 20;
constexpr uid_t kVictim = 65533, kOther = 65532;
constexpr gid_t kGroup = 65531;

const std::vector<uint8_t> kContent(5000, 7), kForged(5000, 9);

CacheEntry entry(size_t number = 1) {
  return CacheEntry({.store = "s3://bucket", .object = "c/" + std::to_string(number), .version = "v1"});
}

Found look(CacheDirectory& cache, const CacheEntry& wanted, std::vector<uint8_t>* into = nullptr) {
  Buffer room;
  PartsRead out;
  const Found found = cache.read(wanted, room, 1 << 20, true, out);
  if (into != nullptr && found == Found::kHit) into->assign(out.bytes.begin(), out.bytes.end());
  return found;
}

mode_t mode_of(const fs::path& path) {
  struct stat info{};
  CHECK_EQ(lstat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

/// A folder in which anybody may make files, as in /tmp.
struct Shared {
  TempDir directory;
  std::string cache = (directory.path() / "cache").string();
  Shared() { fs::permissions(directory.path(), fs::perms::all | fs::perms::sticky_bit); }
};

bool is_root() {
  if (geteuid() == 0) return true;
  std::cout << "  not run: only root can act as two users\n";
  return false;
}

/// Runs `body` as a user with one more group, and checks that it succeeds.
void as_user(uid_t user, const std::function<void()>& body, std::optional<gid_t> group = std::nullopt) {
  const int result = result_of_child([&] {
    const gid_t more = group.value_or(user);
    if (setgroups(1, &more) != 0 || setgid(user) != 0 || setuid(user) != 0) return 1;
    try {
      body();
    } catch (const std::exception& error) {
      std::cout << error.what() << std::endl;
      return 2;
    }
    return 0;
  });
  CHECK_EQ(result, 0);
}

/// Every file and folder of a cache, which has one entry, has these access rights.
void check_modes(const fs::path& cache, mode_t folder, mode_t file) {
  CHECK_EQ(mode_of(cache), folder);
  size_t files = 0;
  for (const auto& item : fs::recursive_directory_iterator(cache)) {
    const Context context(item.path().string());
    CHECK_EQ(mode_of(item.path()), item.is_directory() ? folder : file);
    files += item.is_regular_file() ? 1 : 0;
  }
  CHECK_EQ(files, size_t{4});  // marker, state, name of the store, entry
}

void open_to(const fs::path& cache, mode_t folder, mode_t file) {
  for (const auto& item : fs::recursive_directory_iterator(cache)) {
    CHECK_EQ(chmod(item.path().c_str(), item.is_directory() ? folder : file), 0);
  }
  CHECK_EQ(chmod(cache.c_str(), folder), 0);
}

}  // namespace

TEST(nobody_else_can_reach_what_a_cache_makes) {
  const TempDir directory;
  const int result = result_of_child([&] {
    for (const mode_t mask : {0000, 0022, 0077}) {
      umask(mask);
      const fs::path path = directory.path() / std::to_string(mask), group = path.string() + "-group";
      const auto cache = CacheDirectory::open(path.string(), kLimit);
      CHECK_EQ(cache->admit(entry(), kContent), Admitted::kYes);
      CHECK_EQ(cache->notice(), std::string());
      check_modes(path, 0700, 0600);
      const auto shared = CacheDirectory::open(group.string(), kLimit, getegid());
      CHECK_EQ(shared->admit(entry(), kContent), Admitted::kYes);
      CHECK_EQ(shared->notice(), std::string());
      check_modes(group, 02770, 0660);
    }
    return 0;
  });
  CHECK_EQ(result, 0);
}

TEST(a_folder_that_was_made_beforehand_is_closed_without_a_notice_unless_all_could_write_to_it) {
  for (const mode_t mode : {0700, 0755, 02755, 0775, 02775, 02770, 0777}) {
    const Context context(std::to_string(mode));
    const TempDir directory;
    const fs::path path = directory.path() / "cache";
    fs::create_directory(path);
    CHECK_EQ(chmod(path.c_str(), mode), 0);
    const auto cache = CacheDirectory::open(path.string(), kLimit);
    CHECK_EQ(cache->admit(entry(), kContent), Admitted::kYes);
    CHECK_EQ(cache->notice().empty(), mode != 0777);
    check_modes(path, 0700, 0600);
  }
}

TEST(a_public_folder_stays_public_and_what_is_in_it_is_closed) {
  const TempDir directory;
  CHECK_EQ(chmod(directory.path().c_str(), 01777), 0);
  for (int run = 0; run < 2; ++run) {
    const auto cache = CacheDirectory::open(directory.path().string(), kLimit);
    if (run == 0) CHECK_EQ(cache->admit(entry(), kContent), Admitted::kYes);
    CHECK_EQ(look(*cache, entry()), Found::kHit);
    CHECK_EQ(cache->notice(), std::string());
    CHECK_EQ(mode_of(directory.path()), mode_t{01777});
    CHECK_EQ(mode_of(directory.path() / "entries"), mode_t{0700});
    CHECK_EQ(mode_of(directory.path() / "tmp"), mode_t{0700});
    CHECK_EQ(mode_of(directory.path() / "state"), mode_t{0600});
  }
}

TEST(the_second_user_of_a_public_folder_of_roots_is_told_how_to_share_it) {
  if (!is_root()) return;
  const Shared shared;
  as_user(kVictim, [&] { CHECK_EQ(CacheDirectory::open(shared.directory.path().string(), kLimit)->trouble(), ""); });
  as_user(kOther, [&] {
    CHECK_THROWS(kConfig, "belongs to uid 65533: name another directory, or share this one with cache_group=",
                 CacheDirectory::open(shared.directory.path().string(), kLimit));
  });
}

TEST(folders_above_a_cache_are_made_so_that_nobody_else_can_replace_it) {
  const TempDir directory;
  const int result = result_of_child([&] {
    umask(0);
    CHECK_EQ(CacheDirectory::open((directory.path() / "a/b/cache/").string(), kLimit)->trouble(), std::string());
    CHECK_EQ(mode_of(directory.path() / "a"), mode_t{0755});
    CHECK_EQ(mode_of(directory.path() / "a/b"), mode_t{0755});
    CHECK_EQ(mode_of(directory.path() / "a/b/cache"), mode_t{0700});
    return 0;
  });
  CHECK_EQ(result, 0);
}

TEST(a_cache_of_this_user_with_wider_access_is_closed_once_and_keeps_its_entries) {
  for (const mode_t folder : {0755, 0750, 0711}) {
    const TempDir directory;
    const fs::path path = directory.path() / "cache";
    CHECK_EQ(CacheDirectory::open(path.string(), kLimit)->admit(entry(), kContent), Admitted::kYes);
    open_to(path, folder, 0644);
    const auto cache = CacheDirectory::open(path.string(), kLimit);
    CHECK(cache->notice().find("had mode 0" + std::string(folder == 0755   ? "755"
                                                          : folder == 0750 ? "750"
                                                                           : "711")) != std::string::npos);
    CHECK_EQ(cache->notice().find('\n'), std::string::npos);
    CHECK_EQ(look(*cache, entry()), Found::kHit);
    check_modes(path, 0700, 0600);
    CHECK_EQ(CacheDirectory::open(path.string(), kLimit)->notice(), std::string());
  }
}

TEST(an_entry_that_others_could_have_changed_is_deleted_and_the_others_stay) {
  const TempDir directory;
  const fs::path path = directory.path() / "cache";
  {
    const auto cache = CacheDirectory::open(path.string(), kLimit);
    for (const size_t number : {1, 2, 3}) CHECK_EQ(cache->admit(entry(number), kContent), Admitted::kYes);
  }
  CHECK_EQ(chmod((path / entry(1).path).c_str(), 0666), 0);
  CHECK_EQ(chmod((path / entry(2).path).c_str(), 0664), 0);
  {  // nobody saw it open: it is no entry all the same
    const auto cache = CacheDirectory::open(path.string(), kLimit);
    CHECK_EQ(look(*cache, entry(1)), Found::kDamaged);
    CHECK_EQ(look(*cache, entry(1)), Found::kMiss);
    CHECK_EQ(look(*cache, entry(3)), Found::kHit);
  }
  open_to(path, 0777, 0644);
  CHECK_EQ(chmod((path / entry(2).path).c_str(), 0664), 0);
  const auto cache = CacheDirectory::open(path.string(), kLimit);
  CHECK(cache->notice().find("1 files that others made, or could have changed, were deleted") != std::string::npos);
  CHECK_EQ(look(*cache, entry(2)), Found::kMiss);
  CHECK_EQ(look(*cache, entry(3)), Found::kHit);
}

TEST(a_folder_that_is_no_cache_keeps_its_access_rights) {
  const TempDir directory;
  write_file(directory.path() / "work/thesis.txt", kContent);
  CHECK_EQ(chmod((directory.path() / "work").c_str(), 0777), 0);
  CHECK_THROWS(kConfig, "thesis.txt", CacheDirectory::open((directory.path() / "work").string(), kLimit));
  CHECK_EQ(mode_of(directory.path() / "work"), mode_t{0777});
}

TEST(links_pipes_and_other_names_in_a_cache_harm_no_file_outside) {
  for (const std::string name : {"tmp", "entries", "state", "ZARRFEED-CACHE-1"}) {
    for (const std::string kind : {"link", "link to nothing", "pipe", "hard link", "file"}) {
      const Context context(name + ": " + kind);
      const TempDir directory;
      const fs::path path = directory.path() / "cache", home = directory.path() / "home";
      CHECK_EQ(CacheDirectory::open(path.string(), kLimit)->trouble(), std::string());
      for (const std::string file : {"thesis.tex", "1-2-3", "state"}) write_file(home / file, kContent);
      fs::remove_all(path / name);
      const bool is_folder = name == "tmp" || name == "entries";
      if (kind == "link") fs::create_symlink(is_folder ? home : home / "state", path / name);
      if (kind == "link to nothing") fs::create_symlink(directory.path() / "nothing", path / name);
      if (kind == "pipe") CHECK_EQ(mkfifo((path / name).c_str(), 0666), 0);
      if (kind == "hard link") fs::create_hard_link(home / "state", path / name);
      if (kind == "file") write_file(path / name, kForged);
      try {
        const auto cache = CacheDirectory::open(path.string(), kLimit);
        CHECK(!is_folder);
        cache->admit(entry(), kContent);
        CHECK_EQ(look(*cache, entry()), Found::kHit);
        cache->recount();
        cache->clear("");
      } catch (const Error& error) {
        CHECK(name != "state");
        CHECK(std::string(error.what()).find(name) != std::string::npos);
      }
      size_t files = 0;
      for (const auto& item : fs::directory_iterator(home)) {
        CHECK_EQ(read_file(item.path()), kContent);
        ++files;
      }
      CHECK_EQ(files, size_t{3});
      CHECK(!fs::exists(directory.path() / "nothing"));
    }
  }
}

TEST(links_among_the_entries_are_neither_read_nor_followed) {
  const TempDir directory;
  const fs::path path = directory.path() / "cache", home = directory.path() / "home";
  const auto cache = CacheDirectory::open(path.string(), kLimit);
  CHECK_EQ(cache->admit(entry(), kContent), Admitted::kYes);
  fs::create_directories(home);
  fs::rename(path / entry().path, home / "entry");
  fs::create_symlink(home / "entry", path / entry().path);
  CHECK_EQ(look(*cache, entry()), Found::kMiss);
  CHECK_EQ(cache->files().size(), size_t{0});
  CHECK_EQ(cache->recount(), uint64_t{0});
  CHECK_EQ(cache->admit(entry(), kContent), Admitted::kYes);  // in place of the link
  CHECK(fs::is_regular_file(fs::symlink_status(path / entry().path)));
  // Folders: of the two digits, and of the store.
  for (const fs::path& folder : {(path / entry().path).parent_path(), path / entry().folder}) {
    fs::remove_all(folder);
    fs::create_directory_symlink(home, folder);
    CHECK_EQ(look(*cache, entry()), Found::kMiss);
    CHECK_EQ(CacheDirectory::open(path.string(), kLimit)->admit(entry(), kContent), Admitted::kFailed);
    CHECK_EQ(cache->files().size(), size_t{0});
    CHECK_EQ(cache->list("s3://bucket", "", 100).entries.size(), size_t{0});
    cache->clear("");
  }
}

TEST(what_is_swept_has_a_name_that_the_cache_gives) {
  const TempDir directory;
  const fs::path path = directory.path() / "cache", tmp = path / "tmp";
  CHECK_EQ(CacheDirectory::open(path.string(), kLimit)->trouble(), std::string());
  const std::vector<std::string> others{"thesis.tex", "1-2",   "1-2-3-4",   "1-2-",  "-1-2-3",
                                        "1--2",       "a-2-3", "1-2-3.txt", ".1-2-3"};
  for (const std::string& name : others) write_file(tmp / name, kContent);
  write_file(directory.path() / "outside", kContent);
  fs::create_symlink(directory.path() / "outside", tmp / "4-5-6");
  fs::create_directory(tmp / "7-8-9");
  write_file(tmp / "1-2-3", kContent);
  write_file(tmp / "12345-1-4294967295", kContent);
  CHECK_EQ(CacheDirectory::open(path.string(), kLimit)->trouble(), std::string());
  for (const std::string& name : others) CHECK(fs::exists(tmp / name));
  CHECK(fs::exists(tmp / "7-8-9"));
  CHECK(!fs::exists(tmp / "1-2-3"));
  CHECK(!fs::exists(tmp / "12345-1-4294967295"));
  CHECK_EQ(read_file(directory.path() / "outside"), kContent);
}

TEST(a_cache_that_another_user_made_is_refused_and_the_refusal_names_the_option) {
  if (!is_root()) return;
  const Shared shared;
  const fs::path home = shared.directory.path() / "home";
  as_user(kVictim, [&] {
    for (const std::string name : {"thesis.tex", "id_ed25519", "1-2-3"}) write_file(home / name, kContent);
  });
  for (const mode_t mode : {0755, 0777, 0700, 01777}) {
    const Context context(std::to_string(mode));
    fs::remove_all(shared.cache);
    as_user(kOther, [&] {
      CHECK_EQ(CacheDirectory::open(shared.cache, kLimit)->admit(entry(), kForged), Admitted::kYes);
      fs::remove_all(shared.cache + "/tmp");
      fs::create_directory_symlink(home, shared.cache + "/tmp");
      open_to(shared.cache + "/entries", 0777, 0666);
      CHECK_EQ(chmod((shared.cache + "/state").c_str(), 0666), 0);
      CHECK_EQ(chmod(shared.cache.c_str(), mode), 0);
    });
    const auto refused = [&] {
      CHECK_THROWS(kConfig, "cache_group=", CacheDirectory::open(shared.cache, kLimit));
      CHECK_THROWS(kConfig, "uid 65532", CacheDirectory::open(shared.cache, kLimit));
      CHECK_THROWS(kConfig, "has to open it", CacheDirectory::open(shared.cache, kLimit, kGroup));
    };
    as_user(kVictim, refused, kGroup);
    refused();  // root does not believe another user either
    for (const std::string name : {"thesis.tex", "id_ed25519", "1-2-3"}) CHECK_EQ(read_file(home / name), kContent);
  }
}

TEST(a_link_that_another_user_made_is_refused_and_one_of_this_user_is_followed) {
  if (!is_root()) return;
  const Shared shared;
  const fs::path home = shared.directory.path() / "home", mine = shared.directory.path() / "mine";
  as_user(kVictim, [&] { fs::create_directory(home); });
  as_user(kOther, [&] { fs::create_directory_symlink(home, shared.cache); });
  as_user(kVictim, [&] {
    CHECK_THROWS(kConfig, "is a link that", CacheDirectory::open(shared.cache, kLimit));
    CHECK(fs::is_empty(home));
    fs::create_directory_symlink(home, mine);
    CHECK_EQ(CacheDirectory::open(mine.string(), kLimit)->admit(entry(), kContent), Admitted::kYes);
  });
}

TEST(entries_that_another_user_left_are_dropped) {
  if (!is_root()) return;
  const Shared shared;
  const fs::path path = shared.cache;
  as_user(kVictim, [&] {
    const auto cache = CacheDirectory::open(shared.cache, kLimit);
    for (const size_t number : {1, 2}) CHECK_EQ(cache->admit(entry(number), kContent), Admitted::kYes);
    open_to(shared.cache, 0777, 0644);
  });
  as_user(kOther, [&] {  // content and checksums, all of it right
    const std::string own = (shared.directory.path() / "own").string();
    const auto cache = CacheDirectory::open(own, kLimit);
    for (const size_t number : {1, 3}) {
      CHECK_EQ(cache->admit(entry(number), kForged), Admitted::kYes);
      fs::create_directories((path / entry(number).path).parent_path());
      fs::remove(path / entry(number).path);
      fs::rename(fs::path(own) / entry(number).path, path / entry(number).path);
    }
    fs::remove(path / "state");
    write_file(path / "state", kForged);
  });
  as_user(kVictim, [&] {
    const auto cache = CacheDirectory::open(shared.cache, kLimit);
    CHECK(cache->notice().find("were deleted") != std::string::npos);
    for (const size_t number : {1, 3}) CHECK_EQ(look(*cache, entry(number)), Found::kMiss);
    std::vector<uint8_t> got;
    CHECK_EQ(look(*cache, entry(2), &got), Found::kHit);
    CHECK_EQ(got, kContent);
    CHECK_EQ(cache->used_bytes(), uint64_t{8192});
    CHECK_EQ(cache->trouble(), std::string());
  });
  // A file that gets there later, such as by root's hand: its owner is looked at whenever it is opened.
  CHECK_EQ(chown((path / entry(2).path).c_str(), kOther, kOther), 0);
  CHECK_EQ(chmod((path / entry(2).path).c_str(), 0644), 0);
  as_user(kVictim, [&] {
    const auto cache = CacheDirectory::open(shared.cache, kLimit);
    CHECK_EQ(look(*cache, entry(2)), Found::kDamaged);
    CHECK(!fs::exists(path / entry(2).path));
    CHECK_EQ(cache->admit(entry(2), kContent), Admitted::kYes);
    CHECK_EQ(look(*cache, entry(2)), Found::kHit);
  });
}

TEST(members_of_a_group_share_a_cache_and_nobody_else_reads_it) {
  if (!is_root()) return;
  const Shared shared;
  as_user(
      kVictim,
      [&] {
        umask(0077);
        CHECK_EQ(CacheDirectory::open(shared.cache, kLimit)->admit(entry(1), kContent), Admitted::kYes);
        const auto cache = CacheDirectory::open(shared.cache, kLimit, kGroup);  // it was private until now
        CHECK_EQ(cache->admit(entry(2), kContent), Admitted::kYes);
        CHECK_THROWS(kConfig, "is shared with the group", CacheDirectory::open(shared.cache, kLimit));
      },
      kGroup);
  as_user(
      kOther,
      [&] {
        umask(0077);
        const auto cache = CacheDirectory::open(shared.cache, kLimit, kGroup);
        CHECK_EQ(cache->trouble(), std::string());
        for (const size_t number : {1, 2}) CHECK_EQ(look(*cache, entry(number)), Found::kHit);
        CHECK_EQ(cache->admit(entry(3), kContent), Admitted::kYes);
        const auto claim = cache->try_claim(entry(4));
        CHECK(claim != nullptr);
        CHECK_THROWS(kConfig, "cache_group=", CacheDirectory::open(shared.cache, kLimit));
      },
      kGroup);
  as_user(
      kVictim, [&] { CHECK_EQ(look(*CacheDirectory::open(shared.cache, kLimit, kGroup), entry(3)), Found::kHit); },
      kGroup);
  CHECK_EQ(look(*CacheDirectory::open(shared.cache, kLimit, kGroup), entry(3)), Found::kHit);  // root
  as_user(kOther, [&] { CHECK_THROWS(kConfig, "cache", CacheDirectory::open(shared.cache, kLimit)); });
  for (const auto& item : fs::recursive_directory_iterator(shared.cache)) {
    CHECK_EQ(mode_of(item.path()), item.is_directory() ? mode_t{02770} : mode_t{0660});
  }
  as_user(kOther,
          [&] { CHECK_THROWS(kConfig, "not in the group", CacheDirectory::open(shared.cache + "2", kLimit, kGroup)); });
}

TEST(a_folder_of_root_serves_and_what_a_user_adds_is_the_users_alone) {
  if (!is_root()) return;
  const Shared shared;
  CHECK_EQ(CacheDirectory::open(shared.cache, kLimit)->admit(entry(1), kContent), Admitted::kYes);
  open_to(shared.cache, 0755, 0644);
  as_user(kVictim, [&] {  // what an administrator prepared
    const auto cache = CacheDirectory::open(shared.cache, kLimit);
    CHECK_EQ(look(*cache, entry(1)), Found::kHit);
    CHECK(!cache->is_writable());
  });
  const fs::path scratch = shared.directory.path() / "scratch";  // such as a disk that is mounted there
  fs::create_directory(scratch);
  fs::permissions(scratch, fs::perms::all | fs::perms::sticky_bit);
  as_user(kVictim, [&] {
    CHECK_EQ(CacheDirectory::open(scratch.string(), kLimit)->admit(entry(1), kContent), Admitted::kYes);
    CHECK_EQ(mode_of(scratch / "entries"), mode_t{0700});
  });
  as_user(kOther, [&] { CHECK_THROWS(kConfig, "uid 65533", CacheDirectory::open(scratch.string(), kLimit)); });
}

}  // namespace zarrfeed::testing::cache_folder_test
