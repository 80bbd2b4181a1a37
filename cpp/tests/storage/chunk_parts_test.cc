// The chunks of an array that lies in several stores: their keys and names, and what a chunk that is not there means.
// The invariant: a chunk has the key and the name of the store that it lies in; only a chunk of a store that is there is
// missing, everything else that is not there is an error.

#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "storage/chunk_reader.h"
#include "storage/file_store.h"
#include "storage/stores.h"
#include "tests/support/check.h"
#include "tests/support/many_stores.h"
#include "tests/support/temp_dir.h"
#include "tools/local_reader.h"
#include "transform/output.h"

namespace zarrfeed::testing::chunk_parts_test {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxBytes = 1000;

/// Stores /one with 25 rows and /two with 8, in chunks of 10 rows and two cells.
ArraySpec two_stores(KeySpec key) {
  auto parts = std::make_shared<ArrayParts>();
  *parts = {.begin = {0, 25},
            .end = {25, 33},
            .prefix = {"/one/", "/two/"},
            .name = {"one.zarr/t", "two.zarr/t"},
            .rows_per_chunk = 10,
            .first_chunk = {}};
  parts->number_chunks();
  ArraySpec array;
  array.name = "t";
  array.shape = {33, 30};
  array.chunk_shape = {10, 15};
  array.storage_order = {0, 1};
  array.item_bytes = 4;
  array.key = std::move(key);
  array.parts = std::move(parts);
  return array;
}

std::shared_ptr<ChunkReader> reader_of(const ArraySpec& array) {
  Stores stores(0, 1);
  return std::make_shared<ChunkReader>(array, stores.make(0, array, kMaxBytes), stores.io(), kMaxBytes, ReadPolicy{});
}

/// Keys of `depth` names below each array, with metadata in .zarray.
FileStore store_of(size_t depth) {
  return {"", ".zarray", kMaxBytes, nullptr, depth};
}

ReadStatus read(const FileStore& store, const std::string& key) {
  Buffer cached_room, room;
  PendingRead cached_read, blocking_read;
  ReadStatus cached = store.read_cached(key, cached_room, cached_read);
  if (cached == ReadStatus::kWouldBlock) cached = store.read_blocking(key, cached_room, cached_read);
  CHECK_EQ(store.read_blocking(key, room, blocking_read), cached);
  return cached;
}

}  // namespace

TEST(chunks_are_counted_from_the_first_of_their_store) {
  const auto reader = reader_of(two_stores({"c", '/'}));
  const std::vector<std::vector<std::string>> keys = {{"/one/c/0/0", "/one/c/0/1"},
                                                      {"/one/c/1/0", "/one/c/1/1"},
                                                      {"/one/c/2/0", "/one/c/2/1"},
                                                      {"/two/c/0/0", "/two/c/0/1"}};
  for (int64_t chunk = 0; chunk < 4; ++chunk) {
    for (size_t cell = 0; cell < 2; ++cell) {
      const ChunkLocation at = reader->locate(chunk, cell);
      const size_t part = chunk < 3 ? 0 : 1;
      CHECK_EQ(at.key, keys[static_cast<size_t>(chunk)][cell]);
      CHECK(at.part == part);
      CHECK(!at.inner_chunk);
      CHECK_EQ(reader->label(at), at.key.substr(5));
      CHECK_EQ(reader->name(at), std::string(part == 0 ? "one.zarr/t" : "two.zarr/t"));
    }
  }
  const std::string text = reader->at_chunk(Error(ErrorKind::kCorrupt, "does not decode"), 3, 1).what();
  CHECK_EQ(text, std::string("two.zarr/t chunk c/0/1: does not decode"));
}

TEST(inner_chunks_are_counted_from_the_first_shard_of_their_store) {
  ArraySpec array = two_stores({"c", '/'});
  array.shard.chunks = {2, 2};
  const auto reader = reader_of(array);
  const ChunkLocation last_of_one = reader->locate(2, 1);
  CHECK_EQ(last_of_one.key, std::string("/one/c/1/0"));
  CHECK(last_of_one.inner_chunk == size_t{1});
  const ChunkLocation first_of_two = reader->locate(3, 0);
  CHECK_EQ(first_of_two.key, std::string("/two/c/0/0"));
  CHECK(first_of_two.inner_chunk == size_t{0});
  CHECK(first_of_two.part == size_t{1});
  CHECK_EQ(reader->label(first_of_two).substr(0, 5), std::string("c/0/0"));
}

TEST(errors_of_reads_name_the_store_and_the_key_below_it) {
  std::mt19937_64 random(1);
  const TempDir directory;
  const ManyStores many(random, directory.path(), 40, 1);
  const Output field(many.fields({.tensor = 0, .row_bytes = ManyStores::kRowBytes, .offset = 0}).front());
  const auto reader = open_local(field);
  for (const ManyStores::Store& store : many.stores()) {
    const std::string key = store.array->keys().front();
    const fs::path path = store.array->chunk_path(key);
    fs::remove(path);
    fs::create_directory(path);
    Buffer room;
    const std::string part = store.array->root().filename().string() + " chunk " + key + ": is a directory";
    const ChunkLocation at = reader->locate(store.first_chunk, 0);
    CHECK_THROWS(kIo, part, reader->try_read(at, room));
    CHECK_THROWS(kIo, part, reader->read_here(at, room));
  }
}

TEST(chunks_of_all_stores_have_the_bytes_of_their_files) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    const TempDir directory;
    const ManyStores many(random, directory.path(), 40, 1);
    const Output field(many.fields({.tensor = 0, .row_bytes = ManyStores::kRowBytes, .offset = 0}).front());
    const auto reader = open_local(field);
    for (const ManyStores::Store& store : many.stores()) {
      std::vector<std::string> labels;
      const int64_t chunks = (store.array->num_samples() - 1) / store.rows_per_chunk + 1;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        for (size_t cell = 0; cell < field.num_cells(); ++cell) {
          Buffer room;
          labels.push_back(reader->label(store.first_chunk + chunk, cell));
          const ReadResult got = read_chunk(*reader, store.first_chunk + chunk, cell, room);
          CHECK_EQ(got.status, ReadStatus::kOk);
          CHECK(std::vector<uint8_t>(got.bytes.begin(), got.bytes.end()) ==
                read_file(store.array->chunk_path(labels.back())));
        }
      }
      std::vector<std::string> keys = store.array->keys();
      std::sort(keys.begin(), keys.end());
      std::sort(labels.begin(), labels.end());
      CHECK(labels == keys);
    }
  }
}

TEST(a_chunk_is_missing_only_from_a_store_that_is_there) {
  for (const size_t depth : {size_t{1}, size_t{2}, size_t{3}}) {
    const Context context("depth " + std::to_string(depth));
    const TempDir directory;
    const std::string name = depth == 1 ? "0.0" : depth == 2 ? "c/0" : "c/0/0";
    const auto key = [&](const std::string& store) { return (directory.path() / store / name).string(); };
    for (const char* const store : {"whole", "empty", "gone"}) {
      write_file(directory.path() / store / ".zarray", {});
      write_file(key(store), std::vector<uint8_t>(5, 1));
    }
    FileStore store = store_of(depth);
    store.open();
    fs::remove(key("empty"));
    fs::remove_all(directory.path() / "gone");
    CHECK_EQ(read(store, key("whole")), ReadStatus::kOk);
    CHECK_EQ(read(store, key("empty")), ReadStatus::kMissing);
    if (depth > 1) {
      fs::remove_all(directory.path() / "empty" / "c");
      CHECK_EQ(read(store, key("empty")), ReadStatus::kMissing);
    }
    const std::string gone = (directory.path() / "gone" / ".zarray").string() + " is gone";
    CHECK_THROWS(kIo, gone, read(store, key("gone")));
    // A directory that stays without its metadata is no array any more.
    fs::remove(directory.path() / "empty" / ".zarray");
    CHECK_THROWS(kIo, "is gone: the array was deleted or moved", read(store, key("empty")));
    CHECK_EQ(read(store, key("whole")), ReadStatus::kOk);
  }
}

TEST(a_link_to_nothing_is_an_error_wherever_it_is_on_the_way) {
  const TempDir directory;
  const FileStore store = store_of(2);
  const auto path = [&](const std::string& name) { return directory.path() / name; };
  write_file(path("a") / ".zarray", {});
  fs::create_directory(path("a") / "c");
  fs::create_symlink("nothing", path("a") / "c" / "0");
  CHECK_THROWS(kIo, "a/c/0 is a link to nothing that is there", read(store, (path("a") / "c" / "0").string()));
  CHECK_EQ(read(store, (path("a") / "c" / "1").string()), ReadStatus::kMissing);
  write_file(path("b") / ".zarray", {});
  fs::create_symlink("/nowhere/at/all", path("b") / "c");
  CHECK_THROWS(kIo, "b/c is a link to nothing that is there", read(store, (path("b") / "c" / "0").string()));
  // The disk of a whole store is not mounted: its metadata is out of reach, too.
  fs::create_symlink("/nowhere/at/all", path("s"));
  CHECK_THROWS(kIo, "s/.zarray is gone", read(store, (path("s") / "c" / "0").string()));
  // A link to a store that is there is followed.
  fs::create_symlink(path("a"), path("link"));
  write_file(path("a") / "c" / "2", std::vector<uint8_t>(3, 1));
  CHECK_EQ(read(store, (path("link") / "c" / "2").string()), ReadStatus::kOk);
  CHECK_EQ(read(store, (path("link") / "c" / "3").string()), ReadStatus::kMissing);
}

TEST(no_store_of_an_array_is_held_open) {
  std::mt19937_64 random(3);
  const TempDir directory;
  const ManyStores many(random, directory.path(), 60, 1);
  const Output field(many.fields({.tensor = 0, .row_bytes = ManyStores::kRowBytes, .offset = 0}).front());
  const size_t before = open_descriptors();
  const auto reader = open_local(field);
  for (const ManyStores::Store& store : many.stores()) {
    Buffer room;
    CHECK_EQ(read_chunk(*reader, store.first_chunk, 0, room).status, ReadStatus::kOk);
    CHECK_EQ(open_descriptors(), before);
  }
}

}  // namespace zarrfeed::testing::chunk_parts_test
