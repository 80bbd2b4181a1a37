#include "fuzz/support/engine_input.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/division.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::fuzzing {
namespace {

namespace fs = std::filesystem;
using testing::ArrayLayout;
using testing::Packing;

constexpr size_t kWithWindows = 12;

/// Every packing, shards with their index at either end, transposed chunks, rows that Blosc blocks go straight to, windows,
/// and arrays that are chunked differently.
const std::vector<std::vector<ArrayLayout>>& layouts() {
  static const std::vector<std::vector<ArrayLayout>> all = [] {
    std::vector<std::vector<ArrayLayout>> out;
    for (int packing = 0; packing < testing::kNumPackings; ++packing) {
      out.push_back({{.shape = {40, 6, 5}, .chunk_shape = {8, 4, 5}, .packing = static_cast<Packing>(packing)}});
    }
    out.push_back({{.shape = {40, 6}, .chunk_shape = {4, 3}, .packing = Packing::kLz4, .shard_chunks = {3, 2}}});
    out.push_back({{.shape = {40, 6},
                    .chunk_shape = {4, 6},
                    .packing = Packing::kBlosc,
                    .big_endian = true,
                    .separator = '/',
                    .shard_chunks = {5, 1}}});
    out.push_back({{.shape = {4, 40, 3},
                    .chunk_shape = {3, 7, 3},
                    .storage_order = {2, 0, 1},
                    .sample_axis = 1,
                    .packing = Packing::kZstd,
                    .big_endian = true}});
    out.push_back({{.shape = {16, 1100}, .chunk_shape = {4, 1100}, .packing = Packing::kBlosc}});
    out.push_back({{.shape = {40, 5}, .chunk_shape = {6, 5}, .packing = Packing::kGzip}});
    out.push_back({{.shape = {40, 3}, .chunk_shape = {5, 3}, .packing = Packing::kBlosc},
                   {.shape = {2, 40}, .chunk_shape = {2, 9}, .sample_axis = 1, .packing = Packing::kZlib}});
    return out;
  }();
  return all;
}

/// What draw_reading() takes, so that every number of threads, batch size and so on appears.
void write_reading(Pen& pen, int64_t number) {
  pen.pick(1 + number % 4, 1, 4).pick(1 + number % 3, 1, 3).pick(1 + number % 8, 1, 8).pick(1 + number * 3 % 16, 1, 16);
  pen.byte(number % 2 == 0 ? 1 : 0).byte(number % 5 == 0 ? 1 : 0).byte(static_cast<uint8_t>((number + number / 8) % 8));
  pen.pick(1 + number * 7 % 20, 1, 20).pick(1 + number % 6, 1, 6).byte(static_cast<uint8_t>(number));
  pen.pick(number % 4, 0, 3).pick(number % 4 == 3 ? 2 : 50, 0, 50);
}

}  // namespace

Store::Store(std::vector<ArrayLayout> arrays, bool with_resident, bool with_index, bool with_windows)
    : layouts(std::move(arrays)), data(layouts, with_resident, with_index) {
  if (with_windows) {
    std::mt19937_64 random(3);
    data.add_windows(random);
  }
  for (const auto& array : data.arrays) {
    std::vector<fs::path>& of_array = files.emplace_back();
    for (const auto& entry : fs::recursive_directory_iterator(array->root())) {
      if (!entry.is_regular_file()) continue;
      of_array.push_back(entry.path());
      originals.emplace(entry.path(), testing::read_file(entry.path()));
    }
    // In an order that does not depend on the file system.
    std::sort(of_array.begin(), of_array.end());
    const auto metadata = std::find(of_array.begin(), of_array.end(), array->root() / ".zarray");
    std::rotate(metadata, metadata + 1, of_array.end());
  }
  for (size_t field = 0; field < data.num_fields(); ++field) {
    std::vector<std::vector<uint8_t>>& samples = expected.emplace_back();
    for (int64_t sample = 0; sample < data.num_samples(); ++sample) {
      const bool whole = data.offsets.empty() || (sample >= data.first_window && sample < data.end_window);
      samples.push_back(whole ? data.expected(field, sample) : std::vector<uint8_t>{});
    }
  }
}

const Store& draw_store(Draw& draw) {
  static std::vector<std::unique_ptr<Store>> all(layouts().size());
  const auto number = static_cast<size_t>(draw.pick(0, std::ssize(layouts()) - 1));
  std::unique_ptr<Store>& one = all[number];
  if (one == nullptr) {
    one = std::make_unique<Store>(layouts()[number], number % 2 == 0, number % 3 != 0, number == kWithWindows);
  }
  return *one;
}

std::string label(const std::string& key, std::optional<size_t> position) {
  return position ? key + " " + std::to_string(*position) : key;
}

Reading draw_reading(Draw& draw, const Store& store) {
  Reading reading;
  EngineOptions& options = reading.options;
  options.num_threads = static_cast<size_t>(draw.pick(1, 4));
  options.num_fetch_threads = static_cast<size_t>(draw.pick(1, 3));
  options.max_requests = static_cast<size_t>(draw.pick(1, 8));
  options.batch_size = draw.pick(1, 16);
  options.provided_memory = draw.pick(0, 3) != 0;  // mostly: a sanitizer sees the end of such buffers
  options.cache_bytes = draw.coin() ? 3000 : 0;
  const uint8_t manner = draw.byte();
  options.caller_runs = (manner & 1U) != 0;
  options.skip_bad = (manner & 2U) != 0;
  options.missing_is_error = (manner & 4U) != 0;
  if ((manner & 8U) != 0) options.coalesce = {.gap = (manner & 16U) != 0 ? 64U : 0U, .limit = 1000};
  const int64_t block_rows = draw.pick(1, 20);
  const int64_t lanes = draw.pick(1, 6);
  reading.spec = testing::shuffled_plan_spec(store.data, block_rows, lanes, draw.byte());
  if (!store.data.offsets.empty()) {
    std::mt19937_64 random(reading.spec.seed);
    reading.spec.select(random, store.data.first_window, store.data.end_window);
  }
  reading.more_open = draw.pick(0, 3);
  reading.stop_after = draw.pick(0, 50);
  return reading;
}

std::vector<ByteVector> make_reading_seeds(const std::function<void(Pen&, int64_t)>& write_rest) {
  std::vector<ByteVector> seeds;
  const int64_t count = std::ssize(layouts());
  for (int64_t number = 0; number < count * 12; ++number) {
    Pen pen;
    pen.pick(number % count, 0, count - 1);
    write_reading(pen, number);
    write_rest(pen, number);
    seeds.push_back(pen.input());
  }
  return seeds;
}

Reader::Reader(const Store& store, std::vector<FieldSpec> fields, const Reading& reading)
    : store_(&store),
      reading_(reading),
      order_(testing::reference_order(reading.spec)),
      engine_(std::move(fields), reading.options) {}

void Reader::start(int64_t stop_after) {
  stop_after_ = stop_after;
  auto plan = testing::build_plan(reading_.spec);
  const int64_t open = Engine::required_open_batches(plan->plan, reading_.options.batch_size) + reading_.more_open;
  taken_ = 0;
  engine_.start(std::move(plan), open);
  for (int64_t i = 0; reading_.options.provided_memory && i < open; ++i) provide_buffers();
}

void Reader::provide_buffers() {
  std::vector<uint8_t*> addresses;
  for (const Output& field : engine_.outputs()) {
    const size_t bytes = field.sample_bytes() * static_cast<size_t>(reading_.options.batch_size);
    provided_.push_back(std::make_unique<uint8_t[]>(bytes));
    addresses.push_back(provided_.back().get());
  }
  engine_.provide_buffers(addresses);
}

bool Reader::take(std::chrono::milliseconds timeout, const Damage& damage, bool& timed_out) {
  ReadyBatch batch;
  const NextStatus status = engine_.next(batch, timeout);
  timed_out = status == NextStatus::kTimeout;
  if (status == NextStatus::kEnd) {
    CHECK_EQ(taken_, ceil_div(std::ssize(order_), reading_.options.batch_size));
    return false;
  }
  if (timed_out) return true;
  check(batch, damage);
  ++taken_;
  if (reading_.options.provided_memory) {
    provide_buffers();
  } else {
    testing::release(engine_, batch);
  }
  return taken_ < stop_after_;
}

void Reader::check(const ReadyBatch& batch, const Damage& damage) const {
  CHECK_EQ(batch.rows,
           std::min(reading_.options.batch_size, std::ssize(order_) - taken_ * reading_.options.batch_size));
  check_rows(batch, damage);
  check_skipped(batch, damage);
}

void Reader::check_rows(const ReadyBatch& batch, const Damage& damage) const {
  for (size_t f = 0; f < batch.buffers.size(); ++f) {
    const size_t bytes = engine_.outputs()[f].sample_bytes();
    for (int64_t slot = 0; slot < batch.rows; ++slot) {
      const std::vector<uint8_t>& expected = store_->expected[f][static_cast<size_t>(sample(slot))];
      CHECK_EQ(expected.size(), bytes);
      if (std::memcmp(batch.buffers[f] + static_cast<size_t>(slot) * bytes, expected.data(), bytes) == 0) continue;
      const bool is_skipped = std::any_of(batch.skipped.chunks.begin(), batch.skipped.chunks.end(),
                                          [&](const auto& c) { return c.source == f && needs(c, sample(slot)); });
      if (!is_skipped && !needs(damage.other, f, sample(slot)))
        FAIL("field " + std::to_string(f) + ": a row of a good chunk is not sample " + std::to_string(sample(slot)));
    }
  }
}

void Reader::check_skipped(const ReadyBatch& batch, const Damage& damage) const {
  const auto& [slots, chunks] = batch.skipped;
  CHECK(reading_.options.skip_bad || (slots.empty() && chunks.empty()));
  std::set<int64_t> skipped;
  for (const SkippedSlot& one : slots) {
    CHECK(skipped.insert(one.slot).second);
    CHECK(one.slot >= 0 && one.slot < batch.rows);
    CHECK_EQ(one.sample, sample(one.slot));
    CHECK(std::any_of(chunks.begin(), chunks.end(), [&](const auto& c) { return needs(c, one.sample); }));
  }
  for (const SkippedChunk& chunk : chunks) {
    CHECK(std::any_of(slots.begin(), slots.end(), [&](const auto& one) { return needs(chunk, one.sample); }));
    const Output& reader = engine_.outputs()[chunk.source];
    bool may_be_bad = false;
    for (size_t cell = 0; cell < reader.num_cells(); ++cell) {
      if (engine_.reader(chunk.source).label(chunk.chunk, cell) != chunk.key) continue;
      may_be_bad = is_of(damage.changed, chunk.source, chunk.chunk, cell);
    }
    if (!may_be_bad) FAIL("chunk " + chunk.key + " is good and was passed over: " + chunk.error.what());
  }
  for (size_t f = 0; f < engine_.outputs().size(); ++f) {
    for (int64_t slot = 0; slot < batch.rows; ++slot) {
      if (skipped.contains(slot) || !needs(damage.lost, f, sample(slot))) continue;
      FAIL("field " + std::to_string(f) + ": sample " + std::to_string(sample(slot)) + " cannot be read, and arrived");
    }
  }
}

int64_t Reader::sample(int64_t slot) const {
  return order_[static_cast<size_t>(taken_ * reading_.options.batch_size + slot)];
}

bool Reader::is_of(const Chunks& chunks, size_t field, int64_t chunk, size_t cell) const {
  const ChunkLocation at = engine_.reader(field).locate(chunk, cell);
  return chunks.contains({field, at.key}) || chunks.contains({field, label(at.key, at.inner_chunk)});
}

bool Reader::needs(const Chunks& chunks, size_t field, int64_t sample) const {
  const Output& reader = engine_.outputs()[field];
  if (!reader.is_stored() || chunks.empty()) return false;
  const std::vector<int64_t>& offsets = reader.spec().offsets;
  for (size_t k = 0; k < reader.num_offsets(); ++k) {
    const int64_t chunk = (sample + (offsets.empty() ? 0 : offsets[k])) / reader.source()->rows_per_chunk();
    for (size_t cell = 0; cell < reader.num_cells(); ++cell) {
      if (is_of(chunks, field, chunk, cell)) return true;
    }
  }
  return false;
}

bool Reader::needs(const SkippedChunk& chunk, int64_t sample) const {
  const Output& reader = engine_.outputs()[chunk.source];
  const std::vector<int64_t>& offsets = reader.spec().offsets;
  for (size_t k = 0; k < reader.num_offsets(); ++k) {
    if ((sample + (offsets.empty() ? 0 : offsets[k])) / reader.source()->rows_per_chunk() == chunk.chunk) return true;
  }
  return false;
}

}  // namespace zarrfeed::fuzzing
