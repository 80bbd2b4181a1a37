// What is told of the chunks of an array, one by one: good, missing or bad, whole shards and parts of them.

#include "tools/chunk_checker.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "spec/array_spec.h"
#include "tests/support/check.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::chunk_checker_test {
namespace {

ChunkCheck check_all(const TestArray& array, int64_t step = 1 << 20) {
  ChunkChecker checker(array.field().array);
  ChunkCheck all;
  for (int64_t begin = 0; begin < checker.num_numbers(); begin += step) {
    const ChunkCheck part = checker.check(begin, begin + step);
    all.good += part.good;
    all.stored_bytes += part.stored_bytes;
    all.decoded_bytes += part.decoded_bytes;
    all.findings.insert(all.findings.end(), part.findings.begin(), part.findings.end());
  }
  return all;
}

}  // namespace

TEST(every_chunk_of_a_good_array_is_good_however_it_is_packed_and_cut) {
  for (int packing = 0; packing < kNumPackings; ++packing) {
    for (const bool sharded : {false, true}) {
      const TempDir directory;
      const TestArray array(directory.path() / "a",
                            {.shape = {50, 9},
                             .chunk_shape = {8, 4},
                             .packing = static_cast<Packing>(packing),
                             .shard_chunks = sharded ? std::vector<int64_t>{3, 2} : std::vector<int64_t>{}});
      for (const int64_t step : {int64_t{1}, int64_t{5}, int64_t{1000}}) {
        const ChunkCheck all = check_all(array, step);
        CHECK_EQ(all.good, 7 * 3);
        CHECK_EQ(all.decoded_bytes, uint64_t{7 * 3 * 8 * 4 * 4});
        CHECK(all.stored_bytes > 0);
        CHECK_EQ(all.findings.size(), size_t{0});
      }
    }
  }
}

TEST(a_bad_chunk_and_a_missing_one_are_told_and_the_others_are_still_read) {
  const TempDir directory;
  TestArray array(directory.path() / "a", {.shape = {50, 9}, .chunk_shape = {8, 4}, .packing = Packing::kZstd});
  array.remove_chunk("2.1");
  write_file(array.chunk_path("3.0"), std::vector<uint8_t>(5));
  write_file(array.chunk_path("6.2"), std::vector<uint8_t>{});
  std::filesystem::remove(array.chunk_path("4.0"));
  std::filesystem::create_directory(array.chunk_path("4.0"));
  const ChunkCheck all = check_all(array, 4);
  CHECK_EQ(all.good, 21 - 4);
  CHECK_EQ(all.findings.size(), size_t{4});
  CHECK_EQ(all.findings[0].key, std::string("2.1"));
  CHECK_EQ(all.findings[0].number, 2 * 3 + 1);
  CHECK(!all.findings[0].bad);
  CHECK_EQ(all.findings[1].key, std::string("3.0"));
  CHECK(all.findings[1].bad && all.findings[1].bad->kind() == ErrorKind::kCorrupt);
  CHECK_EQ(all.findings[2].key, std::string("4.0"));
  CHECK(all.findings[2].bad && all.findings[2].bad->kind() == ErrorKind::kIo);
  CHECK_EQ(all.findings[3].key, std::string("6.2"));
  CHECK(all.findings[3].bad && all.findings[3].bad->kind() == ErrorKind::kCorrupt);
}

TEST(a_shard_without_an_index_or_without_a_file_is_one_finding_for_its_chunks) {
  const TempDir directory;
  TestArray array(directory.path() / "a", {.shape = {50, 9}, .chunk_shape = {8, 4}, .shard_chunks = {3, 2}});
  array.remove_chunk("4.1");  // an inner chunk of the shard 1.0
  std::filesystem::remove(array.chunk_path("0.1"));
  std::filesystem::resize_file(array.chunk_path("2.0"), 7);
  const ChunkCheck all = check_all(array);
  // shards 0.1 and 2.0 hold 3 and 2 chunks of the array: the grid is 7 x 3, and the shards are 3 x 2
  CHECK_EQ(all.findings.size(), size_t{3});
  CHECK_EQ(all.findings[0].key, std::string("0.1"));
  CHECK_EQ(all.findings[0].chunks, 3);
  CHECK(!all.findings[0].bad);
  CHECK_EQ(all.findings[1].key, std::string("1.0"));
  CHECK_EQ(all.findings[1].inner, std::string("1/1"));
  CHECK(!all.findings[1].bad);
  CHECK_EQ(all.findings[2].key, std::string("2.0"));
  CHECK_EQ(all.findings[2].chunks, 2);
  CHECK(all.findings[2].bad && all.findings[2].bad->kind() == ErrorKind::kCorrupt);
  CHECK_EQ(all.good, 21 - 3 - 1 - 2);
}

TEST(an_array_that_is_deleted_has_no_missing_chunks_but_errors) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {50}, .chunk_shape = {8}});
  ChunkChecker checker(array.field().array);
  std::filesystem::remove_all(array.root());
  const ChunkCheck all = checker.check(0, checker.num_numbers());
  CHECK_EQ(all.findings.size(), size_t{7});
  for (const ChunkFinding& finding : all.findings) CHECK(finding.bad && finding.bad->kind() == ErrorKind::kIo);
  CHECK_THROWS(kIo, "cannot be opened", ChunkChecker(array.field().array));
}

TEST(threads_share_a_checker) {
  const TempDir directory;
  const TestArray array(directory.path() / "a",
                        {.shape = {400, 9}, .chunk_shape = {8, 4}, .packing = Packing::kBlosc, .shard_chunks = {5, 3}});
  write_file(array.chunk_path("3.0"), std::vector<uint8_t>(5));
  ChunkChecker checker(array.field().array);
  std::vector<ChunkCheck> parts(8);
  std::vector<std::thread> threads;
  const int64_t step = checker.num_numbers() / 8 + 1;
  for (int64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] { parts[static_cast<size_t>(t)] = checker.check(t * step, (t + 1) * step); });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t good = 0;
  int64_t bad = 0;
  for (const ChunkCheck& part : parts) {
    good += part.good;
    for (const ChunkFinding& finding : part.findings) bad += finding.chunks;
  }
  CHECK_EQ(good, 150 - 15);
  CHECK_EQ(bad, 15);
}

TEST(bytes_from_elsewhere_are_decoded_or_refused) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {8}, .chunk_shape = {8}});
  ArraySpec spec = array.field().array;
  spec.in_python = true;
  ChunkChecker checker(spec);
  const std::vector<uint8_t> chunk(32);
  checker.check_bytes(chunk);
  CHECK_THROWS(kCorrupt, "decodes to 31 bytes", checker.check_bytes(Bytes{chunk}.first(31)));
  CHECK_THROWS(kConfig, "not in a local directory", checker.check(0, 1));
}

}  // namespace zarrfeed::testing::chunk_checker_test
