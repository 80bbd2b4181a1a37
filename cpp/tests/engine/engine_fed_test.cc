// Fields whose chunks come through the Python store.

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "engine/engine.h"
#include "spec/field_spec.h"
#include "tests/support/check.h"
#include "tests/support/feeding.h"
#include "tests/support/reading.h"
#include "tests/support/shards.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::engine_fed_test {
namespace {

EngineOptions with_requests(size_t max_requests, int64_t batch_size, size_t num_threads = 3) {
  return {.num_threads = num_threads, .num_fetch_threads = 4, .max_requests = max_requests, .batch_size = batch_size};
}

/// Takes requests until there are `count` parts.
std::vector<OpenPart> take_parts(Engine& engine, size_t count) {
  std::vector<OpenPart> all;
  std::vector<FetchRequest> more;
  std::vector<uint64_t> finished;
  for (int tries = 0; all.size() < count && tries < 60'000; ++tries) {
    engine.stores().bridge()->take(more, finished);
    std::vector<OpenPart> parts = parts_of(std::move(more));
    std::move(parts.begin(), parts.end(), std::back_inserter(all));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(all.size(), count);
  return all;
}

}  // namespace

TEST(fed_fields_arrive_like_local_ones) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const size_t max_requests : {size_t{1}, size_t{3}, size_t{64}}) {
    Engine engine(fed_fields(data), with_requests(max_requests, 8));
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      TestFeeder feeder(engine, data, epoch);  // what it lent is its own again when the epoch is over
      start(engine, spec, 8, 2);
      drain(engine, data, spec, 8);
      engine.stop();
      CHECK(feeder.total() > 0);
      CHECK(feeder.most() <= max_requests);
    }
  }
}

TEST(local_and_fed_fields_may_be_mixed) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (size_t local = 0; local < 2; ++local) {
    std::vector<FieldSpec> fields = fed_fields(data);
    fields[local] = data.fields()[local];
    Engine engine(std::move(fields), with_requests(4, 8));
    TestFeeder feeder(engine, data);
    for (int epoch = 0; epoch < 4; ++epoch) {
      if (epoch % 2 == 1) data.drop_from_page_cache();
      start(engine, spec, 8, 2);
      drain(engine, data, spec, 8);
    }
    engine.stop();
  }
}

TEST(a_group_of_many_cells_keeps_to_the_limit_of_requests) {
  // 5 x 8 cells in a block, and room for three: what finds no room waits.
  const Dataset data({{.shape = {64, 10, 16}, .chunk_shape = {16, 2, 2}}}, false, false);
  const PlanSpec spec = shuffled_plan_spec(data, 16, 2);
  Engine engine(fed_fields(data), with_requests(3, 8));
  TestFeeder feeder(engine, data);
  start(engine, spec, 8);
  drain(engine, data, spec, 8);
  engine.stop();
  CHECK_EQ(feeder.total(), size_t{4 * 40});
  CHECK(feeder.most() <= 3);
}

TEST(many_requests_are_open_at_once_where_there_is_room) {
  const Dataset data = simple_dataset(64, 4);
  Engine engine(fed_fields(data), with_requests(12, 4, 1));
  start(engine, shuffled_plan_spec(data, 4, 8), 4, 8);
  CHECK_EQ(take_parts(engine, 12).size(), size_t{12});  // by a single thread, which waits for none of them
  engine.stop();
}

TEST(a_request_is_made_before_an_answer_that_is_there_is_decoded) {
  // Else a burst of answers is decoded while nothing is under way, and a round trip is waited for after each burst.
  const Dataset data({{.shape = {16, 20'000}, .chunk_shape = {4, 20'000}}}, false,
                     false);  // so large: claimed one by one
  Engine engine(fed_fields(data), with_requests(2, 4, 1));
  start(engine, shuffled_plan_spec(data, 4, 1), 4, 4);
  const std::vector<OpenPart> requests = take_parts(engine, 2);
  const std::vector<uint8_t> chunk = read_file(data.arrays[0]->chunk_path(requests[0].key));
  const std::vector<uint8_t> corrupt(1'000'000);  // few enough to be a chunk, and not the size of one
  const FetchAnswer answers[] = {{requests[0].request_id(), Bytes(chunk)}, {requests[1].request_id(), Bytes(corrupt)}};
  engine.stores().bridge()->answer(answers);
  release(engine, *take(engine));
  CHECK_THROWS(kCorrupt, "1000000 bytes", take(engine));  // the end of the epoch: nothing is asked for after that
  CHECK_EQ(take_parts(engine, 1).size(), size_t{1});
  engine.stop();
}

TEST(inner_chunks_wait_for_half_of_the_room_only_where_they_are_neighbours) {
  const Dataset data = simple_dataset(64, 4);
  constexpr size_t kChunkBytes = 4 * 5 * sizeof(uint32_t);
  for (const int64_t in_shard : {1, 16}) {
    std::vector<FieldSpec> fields = fed_fields(data);
    EngineOptions options = with_requests(8, 4, 1);
    options.coalesce = {.gap = 0, .limit = size_t{1} << 20};
    std::vector<uint8_t> index;
    if (in_shard > 1) {
      fields[0].array.shard.chunks = {in_shard, 1};
      std::vector<ShardEntry> entries;
      for (uint64_t i = 0; i < 16; ++i) entries.emplace_back(i * kChunkBytes, kChunkBytes);
      index = make_index(fields[0].array.shard, entries);
    }
    Engine engine(std::move(fields), options);
    start(engine, shuffled_plan_spec(data, 4, 8), 4, 8);  // chunks so small that the thread claims all of them at once
    if (in_shard > 1) {
      const std::vector<OpenPart> of_index = take_parts(engine, 1);
      CHECK(of_index[0].is_index);
      const FetchAnswer answer{of_index[0].request_id(), Bytes(index)};
      engine.stores().bridge()->answer({&answer, 1});
    }
    const std::vector<OpenPart> requests = take_parts(engine, 8);
    const std::vector<uint8_t> bytes(kChunkBytes);
    const size_t answered = in_shard == 1 ? 1 : 4;
    for (size_t i = 0; i < answered; ++i) {
      const FetchAnswer answer{requests[i].request_id(), Bytes(bytes)};
      engine.stores().bridge()->answer({&answer, 1});
    }
    CHECK_EQ(take_parts(engine, answered).size(), answered);
    engine.stop();
  }
}

TEST(a_chunk_that_the_store_lacks_is_the_fill_value) {
  const Dataset data = simple_dataset(64, 8);
  data.arrays[0]->remove_chunk(data.arrays[0]->keys()[2]);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(fed_fields(data), with_requests(4, 16));
  TestFeeder feeder(engine, data);
  start(engine, spec, 16);
  drain(engine, data, spec, 16);
  CHECK_EQ(engine.stats().chunks_missing.load(), uint64_t{1});
  CHECK_EQ(engine.stats().chunks_waited.load(), uint64_t{8});
  engine.stop();
}

TEST(a_refused_request_is_an_error_with_array_and_key) {
  const Dataset data = simple_dataset(64, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(fed_fields(data), with_requests(4, 16));
  {
    TestFeeder feeder(engine, data);
    feeder.refuse_all();
    start(engine, spec, 16);
    CHECK_THROWS(kIo, ".0: no luck", take(engine));
    engine.stop();
  }
  TestFeeder feeder(engine, data);
  start(engine, spec, 16);
  drain(engine, data, spec, 16);
  engine.stop();
}

TEST(an_answer_that_is_too_long_to_be_a_chunk_is_corrupt) {
  const Dataset data = simple_dataset(64, 8);
  Engine engine(fed_fields(data), with_requests(1, 16));
  start(engine, shuffled_plan_spec(data, 8, 4), 16);
  const std::vector<OpenPart> requests = take_parts(engine, 1);
  const std::vector<uint8_t> bytes(size_t{8} << 20);
  const FetchAnswer answer{requests[0].request_id(), Bytes(bytes)};
  engine.stores().bridge()->answer({&answer, 1});
  CHECK_THROWS(kCorrupt, "the stored object has 8388608 bytes", take(engine));
  engine.stop();
}

TEST(an_epoch_that_waits_for_answers_may_be_stopped_and_late_ones_are_for_nobody) {
  const Dataset data = simple_dataset(64, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(fed_fields(data), with_requests(4, 16));
  const std::vector<uint8_t> wrong(8 * 5 * sizeof(uint32_t), 0xee);
  for (int i = 0; i < 20; ++i) {
    start(engine, spec, 16);
    const std::vector<OpenPart> requests = take_parts(engine, 4);
    if (i % 2 == 0) engine.stop();  // else start() gives the epoch up
    TestFeeder feeder(engine, data);
    start(engine, spec, 16);
    for (const OpenPart& late : requests) {
      const FetchAnswer answer{late.request_id(), Bytes(wrong)};
      engine.stores().bridge()->answer({&answer, 1});
      engine.stores().bridge()->refuse(late.request_id(), Error::io("late", 5));
    }
    drain(engine, data, spec, 16);
    engine.stop();
  }
}

TEST(a_store_that_stalls_does_not_hold_up_stop) {
  const Dataset data = simple_dataset(256, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(fed_fields(data), with_requests(4, 16));
  TestFeeder feeder(engine, data);
  start(engine, spec, 16);
  release(engine, *take(engine));
  feeder.stall();
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    engine.stop();
  });
  const auto rest = [&] {
    while (const auto batch = take(engine)) release(engine, *batch);
  };
  CHECK_THROWS(kClosed, "", rest());
  stopper.join();
}

}  // namespace zarrfeed::testing::engine_fed_test
