// The cache of decoded chunks: those used last, as many bytes as are allowed.

#include "engine/chunks/chunk_cache.h"

#include <thread>
#include <vector>

#include "tests/support/check.h"

namespace zarrfeed::testing::chunk_cache_test {
namespace {

constexpr size_t kChunkBytes = 10'000;

std::shared_ptr<const DecodedChunk> chunk_of(size_t size, uint8_t value) {
  auto chunk = std::make_shared<DecodedChunk>();
  chunk->bytes = std::make_unique<uint8_t[]>(size);
  chunk->size = size;
  chunk->bytes[0] = value;
  return chunk;
}

}  // namespace

TEST(a_chunk_is_found_under_its_own_key_only) {
  ChunkCache cache(10 * kChunkBytes);
  cache.insert({1, 2, 3}, chunk_of(kChunkBytes, 7));
  const auto found = cache.find({1, 2, 3});
  CHECK(found != nullptr);
  CHECK_EQ(int{found->bytes[0]}, 7);
  for (const ChunkCache::Key& other : {ChunkCache::Key{0, 2, 3}, {1, 3, 3}, {1, 2, 2}, {2, 1, 3}, {3, 2, 1}}) {
    CHECK(cache.find(other) == nullptr);
  }
}

TEST(what_was_not_used_for_longest_is_dropped_first) {
  ChunkCache cache(3 * kChunkBytes + 3 * 256);
  for (int64_t i = 0; i < 3; ++i) cache.insert({0, i, 0}, chunk_of(kChunkBytes, 1));
  CHECK(cache.find({0, 0, 0}) != nullptr);  // used now
  cache.insert({0, 3, 0}, chunk_of(kChunkBytes, 1));
  CHECK(cache.find({0, 1, 0}) == nullptr);
  for (const int64_t cached : {0, 2, 3}) CHECK(cache.find({0, cached, 0}) != nullptr);
  cache.insert({0, 4, 0}, chunk_of(2 * kChunkBytes, 1));  // the room of two
  CHECK(cache.find({0, 3, 0}) != nullptr);
  CHECK(cache.find({0, 0, 0}) == nullptr);
  CHECK(cache.find({0, 2, 0}) == nullptr);
}

TEST(a_full_cache_admits_what_was_wanted_before_and_not_long_ago) {
  ChunkCache cache(8 * (kChunkBytes + 256));
  CHECK(!cache.admits({0, 0, 0}, 9 * kChunkBytes));  // more than there is room for at all
  for (int64_t i = 0; i < 8; ++i) {
    CHECK(cache.admits({0, i, 0}, kChunkBytes));
    cache.insert({0, i, 0}, chunk_of(kChunkBytes, 1));
  }
  CHECK(!cache.admits({0, 10, 0}, kChunkBytes));
  CHECK(!cache.admits({0, 11, 0}, kChunkBytes));
  CHECK(cache.admits({0, 10, 0}, kChunkBytes));
  CHECK(!cache.admits({0, 10, 0}, kChunkBytes));  // it was taken at its word
  for (int64_t i = 20; i < 24; ++i) CHECK(!cache.admits({0, i, 0}, kChunkBytes));
  CHECK(!cache.admits({0, 11, 0}, kChunkBytes));  // too long ago: four others since, half of what is cached
  CHECK(cache.admits({0, 23, 0}, kChunkBytes));
  for (int64_t i = 0; i < 8; ++i) CHECK(cache.find({0, i, 0}) != nullptr);
}

TEST(a_chunk_of_which_less_would_do_is_admitted_when_it_is_wanted_again) {
  ChunkCache cache(8 * kChunkBytes);
  for (int64_t i = 0; i < 100; ++i) CHECK(!cache.admits({0, i, 0}, 1, true));
  CHECK(cache.admits({0, 0, 0}, 1, true));  // all of them are remembered as long as there is room
  CHECK(!cache.admits({0, 0, 0}, 1, true));
  CHECK(cache.admits({0, 50, 0}, 1));  // whoever needs all of it gets it cached at once
  CHECK(!cache.admits({0, 99, 0}, 9 * kChunkBytes, true));
}

TEST(no_more_bytes_are_cached_than_allowed) {
  ChunkCache cache(5 * kChunkBytes);
  for (int64_t i = 0; i < 1000; ++i) {
    cache.insert({0, i % 37, 0}, i % 5 == 0 ? std::make_shared<const DecodedChunk>() : chunk_of(kChunkBytes / 3, 1));
    CHECK(cache.bytes() <= cache.max_bytes());
  }
  CHECK(cache.bytes() > 4 * kChunkBytes);
  cache.insert({1, 0, 0}, chunk_of(6 * kChunkBytes, 1));
  CHECK(cache.find({1, 0, 0}) == nullptr);
}

TEST(chunks_that_are_missing_are_not_cached_without_end) {
  ChunkCache cache(10'000);
  for (int64_t i = 0; i < 1000; ++i) cache.insert({0, i, 0}, std::make_shared<const DecodedChunk>());
  CHECK(cache.find({0, 999, 0}) != nullptr);
  CHECK(cache.find({0, 0, 0}) == nullptr);
}

TEST(a_chunk_that_is_held_outlives_its_entry) {
  ChunkCache cache(kChunkBytes + 256);
  cache.insert({0, 0, 0}, chunk_of(kChunkBytes, 9));
  const auto held = cache.find({0, 0, 0});
  cache.insert({0, 1, 0}, chunk_of(kChunkBytes, 1));
  CHECK(cache.find({0, 0, 0}) == nullptr);
  CHECK_EQ(int{held->bytes[0]}, 9);
}

TEST(threads_may_share_it) {
  ChunkCache cache(20 * kChunkBytes);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int64_t i = 0; i < 2000; ++i) {
        const int64_t key = (i * 7 + t) % 50;
        const auto found = cache.find({0, key, 0});
        if (found != nullptr) {
          CHECK_EQ(int{found->bytes[0]}, static_cast<int>(key));
        } else {
          cache.insert({0, key, 0}, chunk_of(kChunkBytes, static_cast<uint8_t>(key)));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(cache.bytes() <= cache.max_bytes());
}

}  // namespace zarrfeed::testing::chunk_cache_test
