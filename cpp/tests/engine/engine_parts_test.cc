// Epochs over arrays in several stores of different layouts, joined by row maps, padded, masked, and side by side in one
// tensor. The invariant: every byte of every batch is what the definition says when the batch is delivered, on any number
// of threads, with chunks that are carried or not, so no batch is complete too early; and all batches come. Where bad chunks are skipped, the skipped slots
// are those of samples that need one, and each such chunk is listed.

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/division.h"
#include "engine/engine.h"
#include "engine/task_builder.h"
#include "tests/support/check.h"
#include "tests/support/many_stores.h"
#include "tests/support/plans.h"
#include "tests/support/reading.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::engine_parts_test {
namespace {

using Row = std::vector<uint8_t>;

/// The fields that write to one range of bytes of the rows of a tensor.
struct RowRange {
  SlotSpec slot;
  WindowRows window;
  std::function<Row(int64_t)> row;   ///< the bytes of a row that is not padded
  Row pad;                           ///< one item
  const ManyStores* many = nullptr;  ///< null: not stored
  size_t first_source = 0;           ///< the number of the source of its layout 0
};

/// Tensor 0: an array in several stores, of up to three layouts. Tensor 1: another one of other lengths, joined by a row
/// map, beside rows in memory. Tensor 2: the mask of tensor 0. Tensor 3: the index. Tensor 4, half of the time: other
/// windows of the array of tensor 0, which draw from the same sources.
class Joined {
 public:
  Joined(std::mt19937_64& random, const PlanSpec& spec)
      : num_samples_(spec.num_samples),
        one_(random, directory_.path() / "one", num_samples_, random() % 3 + 1),
        other_(random, directory_.path() / "other", pick(random, 1, 60), random() % 3 + 1),
        resident_(static_cast<size_t>(pick(random, 1, 60)) * kResidentBytes) {
    for (size_t i = 0; i < resident_.size(); ++i) resident_[i] = static_cast<uint8_t>(i * 31 + i / 256);
    const size_t both = ManyStores::kRowBytes + kResidentBytes;
    const int64_t length = pick(random, 0, 4);
    ranges_.reserve(5);
    const WindowRows rows_of_one = random_rows(random, num_samples_, num_samples_, pick(random, 0, 4));
    add_stored(one_, rows_of_one, {.tensor = 0, .row_bytes = ManyStores::kRowBytes, .offset = 0});
    add_stored(other_, random_rows(random, num_samples_, other_.num_rows(), length),
               {.tensor = 1, .row_bytes = both, .offset = kResidentBytes});
    add_resident(random_rows(random, num_samples_, std::ssize(resident_) / kResidentBytes, length),
                 {.tensor = 1, .row_bytes = both, .offset = 0});
    add_mask(rows_of_one);
    fields_.emplace_back().kind = FieldSpec::Kind::kIndex;
    if (random() % 2 == 0) return;
    add_stored(one_, random_rows(random, num_samples_, num_samples_, pick(random, 0, 4)),
               {.tensor = 4, .row_bytes = ManyStores::kRowBytes + 8, .offset = 4}, ranges_[0].first_source);
  }

  [[nodiscard]] const std::vector<FieldSpec>& fields() const { return fields_; }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_.path(); }

  /// Overwrites chunks of both arrays.
  void damage(std::mt19937_64& random, int count) {
    for (; count > 0; --count) {
      const RowRange& range = ranges_[random() % 2];
      const ManyStores::Chunk chunk = range.many->damage(random);
      bad_.insert({range.first_source + chunk.layout, chunk.number, chunk.key});
    }
  }

  /// The bad chunks that a sample needs, by source.
  [[nodiscard]] std::set<ManyStores::Chunk> bad_of(int64_t sample) const {
    std::set<ManyStores::Chunk> out;
    for (const RowRange& range : ranges_) {
      if (range.many == nullptr) continue;
      for (const int64_t row : range.window.rows(sample)) {
        if (row < 0) continue;
        const size_t field = range.first_source + range.many->store_of(row).layout;
        for (const ManyStores::Chunk& bad : bad_) {
          if (bad.layout == field && bad.number == range.many->chunk_of(row)) out.insert(bad);
        }
      }
    }
    return out;
  }

  /// Takes all batches of an epoch and checks every byte of them. Returns how many slots were skipped. What was
  /// delivered in provided memory is still there at the end.
  int64_t drain(Engine& engine, ProvidedMemory& memory, const PlanSpec& spec, int64_t batch_size) const {
    const std::vector<int64_t> order = reference_order(spec);
    std::vector<std::pair<const uint8_t*, Row>> delivered;
    int64_t number = 0;
    int64_t skipped = 0;
    for (; const auto batch = take(engine); ++number) {
      const Context context("batch " + std::to_string(number));
      const auto first = order.begin() + number * batch_size;
      const std::vector<int64_t> samples(first, first + batch->rows);
      skipped += check_skipped(*batch, samples);
      check_rows(*batch, samples);
      if (engine.uses_provided_memory()) {
        for (size_t t = 0; t < batch->buffers.size(); ++t) {
          const uint8_t* const buffer = batch->buffers[t];
          delivered.emplace_back(buffer, Row(buffer, buffer + engine.memory(t)->buffer_bytes()));
        }
        memory.provide(engine);
        continue;
      }
      for (size_t t = 0; t < batch->buffers.size(); ++t) {
        // What is written next must not be right already.
        std::memset(batch->buffers[t], 0xa5, engine.memory(t)->buffer_bytes());
        engine.memory(t)->release(batch->buffers[t]);
      }
    }
    CHECK_EQ(number, ceil_div(std::ssize(order), batch_size));
    for (const auto& [buffer, bytes] : delivered) CHECK(std::equal(bytes.begin(), bytes.end(), buffer));
    return skipped;
  }

 private:
  static constexpr size_t kResidentBytes = 3;

  /// `draws_from` is the number of the source of layout 0; none: nobody drew from the array before.
  void add_stored(const ManyStores& many, WindowRows window, const SlotSpec& slot,
                  std::optional<size_t> draws_from = std::nullopt) {
    const Row pad = draws_from ? Row{5, 6, 7, 8} : Row{1, 2, 3, 4};
    const auto row = [&many](int64_t index) { return many.row(index); };
    const RowRange& range =
        ranges_.emplace_back(RowRange{slot, std::move(window), row, pad, &many, draws_from.value_or(fields_.size())});
    size_t source = range.first_source;
    for (FieldSpec& field : many.fields(slot)) {
      if (draws_from) field.source = source++;
      add_field(range, std::move(field));
    }
  }

  void add_resident(WindowRows window, const SlotSpec& slot) {
    const auto row = [this](int64_t index) {
      const auto begin = resident_.begin() + index * static_cast<int64_t>(kResidentBytes);
      return Row(begin, begin + static_cast<int64_t>(kResidentBytes));
    };
    FieldSpec field;
    field.kind = FieldSpec::Kind::kResident;
    field.rows = resident_.data();
    field.sample_bytes = kResidentBytes;
    field.slot = slot;
    add_field(ranges_.emplace_back(RowRange{slot, std::move(window), row, {9}}), std::move(field));
  }

  /// A mask says of edges, too, that they are padded.
  void add_mask(WindowRows window) {
    window.pad = PadSpec::Mode::kFill;
    FieldSpec field;
    field.kind = FieldSpec::Kind::kPadMask;
    const SlotSpec slot{.tensor = 2, .row_bytes = 1, .offset = 0};
    add_field(ranges_.emplace_back(RowRange{slot, std::move(window), [](int64_t) { return Row{0}; }, {1}}),
              std::move(field));
  }

  void add_field(const RowRange& range, FieldSpec field) {
    range.window.apply(field);
    field.pad.item = range.pad;
    fields_.push_back(std::move(field));
  }

  void check_rows(const ReadyBatch& batch, const std::vector<int64_t>& samples) const {
    for (size_t slot = 0; slot < samples.size(); ++slot) {
      if (!bad_of(samples[slot]).empty()) continue;
      int64_t index = -1;
      std::memcpy(&index, batch.buffers[3] + slot * sizeof(index), sizeof(index));
      CHECK_EQ(index, samples[slot]);
      for (const RowRange& range : ranges_) {
        const std::vector<int64_t> rows = range.window.rows(samples[slot]);
        for (size_t k = 0; k < rows.size(); ++k) {
          const uint8_t* const got =
              batch.buffers[range.slot.tensor] + (slot * rows.size() + k) * range.slot.row_bytes + range.slot.offset;
          if (rows[k] >= 0) {
            const Row expected = range.row(rows[k]);
            if (std::equal(expected.begin(), expected.end(), got)) continue;
          } else {
            const size_t bytes =
                range.many != nullptr ? ManyStores::kRowBytes : std::min(range.slot.row_bytes, kResidentBytes);
            size_t same = 0;
            while (same < bytes && got[same] == range.pad[same % range.pad.size()]) ++same;
            if (same == bytes) continue;
          }
          FAIL("tensor " + std::to_string(range.slot.tensor) + ", slot " + std::to_string(slot) + ", row " +
               std::to_string(k) + " of the window is not row " + std::to_string(rows[k]));
        }
      }
    }
  }

  [[nodiscard]] int64_t check_skipped(const ReadyBatch& batch, const std::vector<int64_t>& samples) const {
    std::vector<SkippedSlot> slots;
    std::set<ManyStores::Chunk> chunks;
    for (size_t slot = 0; slot < samples.size(); ++slot) {
      const std::set<ManyStores::Chunk> bad = bad_of(samples[slot]);
      if (!bad.empty()) slots.push_back({static_cast<int64_t>(slot), samples[slot]});
      chunks.insert(bad.begin(), bad.end());
    }
    CHECK(batch.skipped.slots == slots);
    std::set<ManyStores::Chunk> listed;
    for (const SkippedChunk& chunk : batch.skipped.chunks) listed.insert({chunk.source, chunk.chunk, chunk.key});
    CHECK(listed == chunks);
    return std::ssize(slots);
  }

  TempDir directory_;
  int64_t num_samples_;
  ManyStores one_;
  ManyStores other_;
  std::vector<uint8_t> resident_;
  std::vector<RowRange> ranges_;
  std::vector<FieldSpec> fields_;
  std::set<ManyStores::Chunk> bad_;  ///< `layout` is the number of the source here
};

EngineOptions random_options(std::mt19937_64& random) {
  EngineOptions options = with_threads(random() % 4 + 1, pick(random, 1, 9));
  options.num_fetch_threads = random() % 3;
  options.cache_bytes = random() % 2 == 0 ? 0 : 3000;
  options.carry_bytes = std::array{size_t{0}, size_t{1}, size_t{3000}, size_t{1} << 30}[random() % 4];
  options.provided_memory = random() % 2 == 0;
  options.caller_runs = random() % 3 == 0;
  return options;
}

/// Starts an epoch with some more open batches than it needs; where chunks are carried, groups share all of them.
void start_any(Engine& engine, ProvidedMemory& memory, const PlanSpec& spec, const EngineOptions& options,
               int64_t more) {
  options.carry_bytes > 0 ? start_shared(engine, spec, options.batch_size, more)
                          : start(engine, spec, options.batch_size, more);
  const int64_t required = Engine::required_open_batches(build_plan(spec)->plan, options.batch_size);
  if (options.provided_memory) memory.provide(engine, required + more);
}

/// Two layouts, of 1 and of 6 cells, in stores of 5 rows by turns; raw bytes of numbers that say their row.
std::vector<FieldSpec> two_layouts(const TempDir& directory, int64_t num_stores) {
  constexpr int64_t kRows = 5;
  std::vector<FieldSpec> fields;
  std::vector<std::shared_ptr<ArrayParts>> parts;
  for (int64_t s = 0; s < num_stores; ++s) {
    const auto layout = static_cast<size_t>(s % 2);
    const TestArray array(directory.path() / ("s" + std::to_string(s)),
                          {.shape = {kRows, 6, 4}, .chunk_shape = {2, layout == 0 ? 6 : 1, 4}, .first_row = s * kRows});
    if (s < 2) {
      fields.push_back(array.field());
      parts.push_back(std::make_shared<ArrayParts>());
    }
    parts[layout]->begin.push_back(s * kRows);
    parts[layout]->end.push_back((s + 1) * kRows);
    parts[layout]->prefix.push_back(array.root().string() + "/");
    parts[layout]->name.push_back(array.root().filename().string());
    parts[layout]->rows_per_chunk = 2;
  }
  for (size_t layout = 0; layout < fields.size(); ++layout) {
    parts[layout]->number_chunks();
    fields[layout].array.shape[0] = num_stores * kRows;
    fields[layout].array.root.clear();
    fields[layout].array.parts = parts[layout];
    fields[layout].slot = SlotSpec{.tensor = 0, .row_bytes = ManyStores::kRowBytes, .offset = 0};
    fields[layout].is_variant = layout > 0;
  }
  return fields;
}

}  // namespace

TEST(every_byte_of_every_batch_is_what_the_definition_says) {
  for (uint64_t seed = 0; seed < static_cast<uint64_t>(30 * stress()); ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const PlanSpec spec = random_plan_spec(random, 60);
    const Joined data(random, spec);
    const EngineOptions options = random_options(random);
    Engine engine(data.fields(), options);
    CHECK(engine.num_tensors() == 4 || engine.num_tensors() == 5);
    ProvidedMemory memory;
    for (int epoch = 0; epoch < 2; ++epoch) {
      if (random() % 3 == 0) drop_from_page_cache(data.directory());
      start_any(engine, memory, spec, options, pick(random, 0, 3));
      CHECK_EQ(data.drain(engine, memory, spec, options.batch_size), int64_t{0});
    }
  }
}

TEST(samples_that_need_a_bad_chunk_of_any_store_are_skipped_and_all_such_chunks_are_listed) {
  int64_t skipped = 0;
  for (uint64_t seed = 100; seed < static_cast<uint64_t>(100 + 30 * stress()); ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const PlanSpec spec = random_plan_spec(random, 60);
    Joined data(random, spec);
    data.damage(random, 4);
    EngineOptions options = random_options(random);
    options.skip_bad = true;
    Engine engine(data.fields(), options);
    ProvidedMemory memory;
    for (int epoch = 0; epoch < 2; ++epoch) {
      start_any(engine, memory, spec, options, pick(random, 0, 3));
      skipped += data.drain(engine, memory, spec, options.batch_size);
    }
  }
  CHECK(skipped > 50);
}

TEST(batches_of_layouts_with_different_cells_are_complete_when_all_their_cells_are_written) {
  // Many threads, many batches, and a sample of which one cell or six are written.
  const TempDir directory;
  const int64_t num_stores = 24;
  const std::vector<FieldSpec> fields = two_layouts(directory, num_stores);
  PlanSpec spec;
  spec.shuffle = true;
  spec.num_samples = 5 * num_stores;
  spec.block_rows = 5;
  spec.lanes = 4;
  spec.mix = 2;
  for (int64_t block = 0; block < num_stores; ++block) spec.block_order.push_back(block);
  const std::vector<int64_t> order = reference_order(spec);
  for (const size_t threads : {size_t{1}, size_t{8}}) {
    for (const size_t fetchers : {size_t{0}, size_t{4}}) {
      EngineOptions options = with_threads(threads, 3);
      options.num_fetch_threads = fetchers;
      Engine engine(fields, options);
      CHECK(!TaskBuilder::pieces_per_sample(engine.outputs()).has_value());
      for (int64_t epoch = 0; epoch < 10 * stress(); ++epoch) {
        if (fetchers > 0) drop_from_page_cache(directory.path());
        start(engine, spec, 3, 4);
        size_t step = 0;
        while (const auto batch = take(engine)) {
          for (int64_t slot = 0; slot < batch->rows; ++slot, ++step) {
            std::vector<uint32_t> row(24);
            std::memcpy(row.data(), batch->buffers[0] + static_cast<size_t>(slot) * ManyStores::kRowBytes,
                        ManyStores::kRowBytes);
            for (size_t i = 0; i < row.size(); ++i) {
              CHECK_EQ(row[i], static_cast<uint32_t>(order[step]) * 1'000'003U + static_cast<uint32_t>(i) * 7U);
            }
          }
          std::memset(batch->buffers[0], 0xa5, engine.memory(0)->buffer_bytes());
          engine.memory(0)->release(batch->buffers[0]);
        }
        CHECK_EQ(step, order.size());
      }
    }
  }
}

TEST(a_chunk_of_a_part_is_decoded_once_for_all_groups_of_a_lane) {
  const TempDir directory;
  const int64_t num_stores = 8;
  std::vector<FieldSpec> fields = two_layouts(directory, num_stores);
  for (FieldSpec& field : fields) {  // windows that reach into both neighbours, which have the other layout
    field.offsets = {-3, 0, 3};
    field.pad.mode = PadSpec::Mode::kEdge;
  }
  PlanSpec spec;
  spec.num_samples = 5 * num_stores;
  spec.block_rows = 5;
  for (int64_t block = 0; block < num_stores; ++block) spec.block_order.push_back(block);
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    for (const size_t room : {size_t{1}, size_t{1} << 30}) {
      EngineOptions options = with_threads(threads, 7);
      options.carry_bytes = room;
      Engine engine(fields, options);
      start_shared(engine, spec, 7, 40);
      int64_t sample = 0;
      while (const auto batch = take(engine)) {
        for (int64_t slot = 0; slot < batch->rows; ++slot, ++sample) {
          for (const int64_t k : {0, 1, 2}) {
            uint32_t value = 0;
            std::memcpy(&value, batch->buffers[0] + static_cast<size_t>(3 * slot + k) * ManyStores::kRowBytes,
                        sizeof(value));
            const int64_t row = std::clamp<int64_t>(sample + 3 * k - 3, 0, spec.num_samples - 1);
            CHECK_EQ(value, static_cast<uint32_t>(row) * 1'000'003U);
          }
        }
        release(engine, *batch);
      }
      // Three chunks a store, of one cell or of six.
      const uint64_t all = 4 * 3 * 1 + 4 * 3 * 6;
      CHECK(room == 1 ? engine.stats().chunks_read > all : engine.stats().chunks_read == all);
    }
  }
}

TEST(a_store_that_is_gone_is_an_error_that_names_it_and_a_chunk_that_is_missing_is_fill) {
  const TempDir directory;
  const std::vector<FieldSpec> fields = two_layouts(directory, 4);
  PlanSpec spec;
  spec.num_samples = 20;
  spec.block_rows = 5;
  spec.block_order = {0, 1, 2, 3};
  std::filesystem::remove(directory.path() / "s2" / "1.0.0");  // rows 12 and 13
  {
    Engine engine(fields, with_threads(2, 20));
    start(engine, spec, 20);
    const auto batch = take(engine);
    for (size_t row = 0; row < 20; ++row) {
      uint32_t value = 0;
      std::memcpy(&value, batch->buffers[0] + row * ManyStores::kRowBytes, sizeof(value));
      const bool is_fill = row == 12 || row == 13;
      CHECK_EQ(value, is_fill ? TestArray::kFill : static_cast<uint32_t>(row) * 1'000'003U);
    }
    release(engine, *batch);
    CHECK_EQ(engine.stats().chunks_missing.load(), uint64_t{1});
  }
  EngineOptions strict = with_threads(2, 20);
  strict.missing_is_error = true;
  Engine refusing(fields, strict);
  start(refusing, spec, 20);
  CHECK_THROWS(kIo, "s2 chunk 1.0.0: is missing from the store", take(refusing));
  std::filesystem::remove_all(directory.path() / "s2");
  Engine engine(fields, with_threads(2, 20));
  start(engine, spec, 20);
  CHECK_THROWS(kIo, "s2", take(engine));
}

TEST(fields_that_do_not_fit_into_their_tensor_are_refused) {
  const TempDir directory;
  const auto refused = [&](const std::function<void(FieldSpec&)>& change, const std::string& part) {
    std::vector<FieldSpec> fields = two_layouts(directory, 2);
    change(fields[1]);
    CHECK_THROWS(kConfig, part, Engine(fields, with_threads(1, 4)));
  };
  refused([](FieldSpec& field) { field.slot->offset = 1; }, "field 1 does not fit into a row of its tensor");
  refused([](FieldSpec& field) { field.slot->row_bytes -= 1; }, "field 1 does not fit into a row of its tensor");
  refused([](FieldSpec& field) { field.slot->row_bytes += 1; }, "field 1 does not fit into its tensor");
  refused([](FieldSpec& field) { field.offsets = {0, 1}; }, "field 1 does not fit into its tensor");
  refused([](FieldSpec& field) { field.slot->tensor = 2; }, "field 1 does not fit into its tensor");
}

}  // namespace zarrfeed::testing::engine_parts_test
