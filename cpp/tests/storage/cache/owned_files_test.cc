// Files below a folder: no link is followed at any component, access rights do not depend on the umask, who is believed.

#include "storage/cache/owned_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/child.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::owned_files_test {
namespace {

namespace fs = std::filesystem;

File folder_of(const TempDir& directory) {
  return File(open(directory.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

mode_t mode_of(const fs::path& path) {
  struct stat info{};
  CHECK_EQ(lstat(path.c_str(), &info), 0);
  return info.st_mode & 07777;
}

}  // namespace

TEST(no_link_is_followed_at_any_component) {
  const TempDir directory;
  const fs::path root = directory.path() / "root", other = directory.path() / "other";
  write_file(root / "a/b/file", std::vector<uint8_t>{1});
  write_file(other / "b/file", std::vector<uint8_t>{2});
  fs::create_directory_symlink(other, root / "first");
  fs::create_directory_symlink(other / "b", root / "a" / "second");
  fs::create_symlink(other / "b" / "file", root / "a" / "b" / "last");
  fs::create_symlink("../../other/b/file", root / "a" / "relative");
  const File folder(open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (const auto open_one : {open_beneath, open_stepwise}) CHECK(open_one(folder.get(), "a/b/file", O_RDONLY, 0));
  for (const std::string path : {"first/b/file", "a/second/file", "a/b/last", "a/relative", "first/b", "first"}) {
    const Context context(path);
    for (const auto open_one : {open_beneath, open_stepwise}) {
      CHECK(!open_one(folder.get(), path, O_RDONLY, 0));
      CHECK(errno == ELOOP || errno == ENOTDIR);
      CHECK(!open_one(folder.get(), path, O_WRONLY | O_CREAT | O_TRUNC, 0600));
      CHECK(!open_one(folder.get(), "a/nothing/file", O_RDONLY, 0));
      CHECK_EQ(errno, ENOENT);
    }
    CHECK(!make_file(folder.get(), path, FileOwners::of_process({})));
  }
  CHECK(remove_beneath(folder.get(), "first/b/file") != 0);
  CHECK(make_folder(folder.get(), "first/made", FileOwners::of_process({})) != 0);
  CHECK_EQ(remove_contents(folder.get()), 0);
  CHECK(fs::is_empty(root));
  CHECK_EQ(read_file(other / "b" / "file"), std::vector<uint8_t>{2});
  CHECK(!fs::exists(other / "made"));
}

TEST(what_is_made_has_its_access_rights_whatever_the_umask_is) {
  const TempDir directory;
  const int result = result_of_child([&] {
    const File folder = folder_of(directory);
    for (const mode_t mask : {0000, 0022, 0077, 0377}) {
      umask(mask);
      const std::string name = std::to_string(mask);
      const FileOwners alone = FileOwners::of_process({}), shared = FileOwners::of_process(getegid());
      CHECK(make_file(folder.get(), name + "-file", alone));
      CHECK(make_file(folder.get(), name + "-shared", shared));
      CHECK_EQ(make_folder(folder.get(), name, alone), 0);
      CHECK_EQ(make_folder(folder.get(), name + "-2", shared), 0);
      CHECK_EQ(mode_of(directory.path() / (name + "-file")), mode_t{0600});
      CHECK_EQ(mode_of(directory.path() / (name + "-shared")), mode_t{0660});
      CHECK_EQ(mode_of(directory.path() / name), mode_t{0700});
      CHECK_EQ(mode_of(directory.path() / (name + "-2")), mode_t{02770});
      CHECK(!make_file(folder.get(), name + "-file", alone));
      CHECK_EQ(errno, EEXIST);
      CHECK_EQ(make_folder(folder.get(), name, alone), 0);
    }
    return 0;
  });
  CHECK_EQ(result, 0);
}

TEST(a_file_is_believed_if_its_owners_alone_could_write_it) {
  const FileOwners alone{.user = 1000}, shared{.user = 1000, .group = 50};
  struct Case {
    uid_t user;
    gid_t group;
    mode_t mode;
    bool by_alone, by_shared;
  };
  for (const Case& one : std::vector<Case>{{1000, 1000, 0600, true, true},
                                           {1000, 1000, 0644, true, true},
                                           {1000, 1000, 0664, false, false},
                                           {1000, 1000, 0646, false, false},
                                           {0, 0, 0644, true, true},
                                           {0, 0, 0666, false, false},
                                           {1001, 1001, 0600, false, false},
                                           {1001, 50, 0600, false, true},
                                           {1001, 50, 0660, false, true},
                                           {1001, 50, 0662, false, false},
                                           {1000, 50, 0660, false, true}}) {
    const Context context(std::to_string(one.user) + ":" + std::to_string(one.group) + " " + std::to_string(one.mode));
    struct stat info{};
    info.st_uid = one.user;
    info.st_gid = one.group;
    info.st_mode = S_IFREG | one.mode;
    CHECK_EQ(alone.believe(info), one.by_alone);
    CHECK_EQ(shared.believe(info), one.by_shared);
  }
}

TEST(the_owner_of_what_is_made_in_a_folder_is_found_and_nothing_stays) {
  const TempDir directory;
  CHECK(user_in(folder_of(directory).get()) == geteuid());
  CHECK(fs::is_empty(directory.path()));
  CHECK(user_in(-1) == std::nullopt);
}

TEST(names_are_listed_once_and_users_and_groups_have_names) {
  const TempDir directory;
  for (const std::string name : {"b", "a", ".hidden"}) write_file(directory.path() / name, std::vector<uint8_t>{1});
  std::vector<std::string> names;
  const File folder = folder_of(directory);
  for (int round = 0; round < 2; ++round) {
    names.clear();
    CHECK_EQ(for_each_name(folder.get(), [&](const std::string& name) { names.push_back(name); }), 0);
    std::sort(names.begin(), names.end());
    CHECK_EQ(names, (std::vector<std::string>{".hidden", "a", "b"}));
  }
  CHECK(for_each_name(-1, [](const std::string&) {}) != 0);
  CHECK_EQ(name_of_user(4000000001U), std::string("uid 4000000001"));
  CHECK_EQ(name_of_group(4000000001U), std::string("gid 4000000001"));
}

}  // namespace zarrfeed::testing::owned_files_test
