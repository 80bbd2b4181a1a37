// Fields of every kind over whole stores: arrays in several stores of several layouts, joined by row maps, windows that
// are padded inside of segments, distances that are drawn, and fields side by side in one tensor. Maps, borders, offsets,
// ranges of rows of tensors and the plan are drawn, and may be wrong.
//
// What must hold: an epoch ends with an error of the plan or of a field, and if nothing but fields may be wrong, only if a
// sample of the epoch lacks a row that nothing takes the place of; or with every batch, of which every row is what the
// definition in spec/field_spec.h says of the sample that the batch names. An epoch never hangs, and nothing is read or
// written outside of maps, borders, rows in memory and provided buffers.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "fuzz/support/fuzz.h"
#include "plan/row_order.h"
#include "spec/field_spec.h"
#include "tests/support/check.h"
#include "tests/support/many_stores.h"
#include "tests/support/plans.h"
#include "tests/support/reading.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::fuzzing::fields_fuzz {
namespace {

using Row = std::vector<uint8_t>;
using testing::ManyStores;
using testing::PlanSpec;

constexpr int64_t kTelling[] = {
    0, 1, -1, 1 << 20, int64_t{1} << 40, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
constexpr size_t kResidentBytes = 3;
constexpr int64_t kResidentRows = 29;
constexpr int64_t kMaxSamples = 36;
constexpr int kMaxWaits = 600;  // of 100 ms: after so many the engine hangs

/// Two arrays in several stores. They are made when they are first asked for, and live as long as the process.
struct Stored {
  explicit Stored(size_t number)
      : random(number),
        one(random, directory.path() / "one", kMaxSamples, number % 3 + 1),
        other(random, directory.path() / "other", 23, (number + 1) % 3 + 1) {}

  testing::TempDir directory;
  std::mt19937_64 random;
  ManyStores one;
  ManyStores other;
};

constexpr int64_t kNumStored = 6;

const Stored& draw_stored(Draw& draw) {
  static std::vector<std::unique_ptr<Stored>> all(kNumStored);
  const auto number = static_cast<size_t>(draw.pick(0, kNumStored - 1));
  if (all[number] == nullptr) all[number] = std::make_unique<Stored>(number);
  return *all[number];
}

/// A number from [low, high], or seldom any other one.
int64_t draw_number(Draw& draw, bool is_wild, int64_t low, int64_t high) {
  const bool is_telling = is_wild && draw.byte() % 16 == 0;
  return is_telling ? draw.one_of(kTelling) : draw.pick(low, high);
}

/// Which rows a field has for a sample.
struct Window {
  enum class Map { kNone, kList, kRule };

  std::vector<int64_t> offsets;
  std::optional<LeadSpec> lead;
  PadSpec::Mode pad = PadSpec::Mode::kNone;
  Row item;
  std::optional<std::vector<int64_t>> borders;
  Map map = Map::kNone;
  std::vector<int64_t> rows;
  int64_t first = 0;
  int64_t step = 1;
  int64_t num_rows = 0;

  void apply(FieldSpec& field) const {
    field.offsets = offsets;
    field.lead = lead;
    field.pad.mode = pad;
    field.pad.item = item;
    if (borders) field.pad.borders = std::make_shared<const std::vector<int64_t>>(*borders);
    if (map == Map::kList) {
      static constexpr int64_t kNoRows = 0;  // an empty list lies somewhere, too: null stands for a rule
      field.row_map = RowMapSpec{.rows = rows.empty() ? &kNoRows : rows.data(), .num_samples = std::ssize(rows)};
    }
    if (map == Map::kRule) field.row_map = RowMapSpec{.first = first, .step = step};
    field.num_rows = num_rows;
  }

  /// The rows of a sample by the definition, -1: padded; none if it lacks one that nothing takes the place of.
  [[nodiscard]] std::optional<std::vector<int64_t>> rows_of(int64_t sample, const EpochPlan& plan) const {
    int64_t begin = 0;
    int64_t end = plan.num_samples;
    for (const int64_t border : borders.value_or(std::vector<int64_t>{})) {
      if (border <= sample) begin = std::max(begin, border);
      if (border > sample) end = std::min(end, border);
    }
    std::vector<int64_t> distances = offsets.empty() ? std::vector<int64_t>{0} : offsets;
    if (lead) {
      for (const size_t i : lead->offset_indices) distances[i] = draw_lead(plan, sample, lead->low, lead->high);
    }
    std::vector<int64_t> out;
    for (const int64_t distance : distances) {
      const std::optional<int64_t> row = row_at(static_cast<__int128>(sample) + distance, begin, end);
      if (!row) return std::nullopt;
      out.push_back(*row);
    }
    return out;
  }

 private:
  [[nodiscard]] std::optional<int64_t> row_at(__int128 at, int64_t begin, int64_t end) const {
    if (at < begin || at >= end) {
      if (pad == PadSpec::Mode::kNone) return std::nullopt;
      if (pad == PadSpec::Mode::kFill) return -1;
      at = at < begin ? begin : end - 1;
    }
    if (map == Map::kNone) return static_cast<int64_t>(at);
    __int128 row = first + static_cast<__int128>(step) * at;
    if (map == Map::kList) {
      if (at >= std::ssize(rows) || rows[static_cast<size_t>(at)] >= num_rows) return std::nullopt;
      row = rows[static_cast<size_t>(at)];
    } else if (row >= num_rows) {
      row = -1;
    }
    if (row < 0 && pad == PadSpec::Mode::kNone) return std::nullopt;
    return row < 0 ? -1 : static_cast<int64_t>(row);
  }
};

Window draw_window(Draw& draw, bool is_wild, int64_t num_samples, int64_t num_rows, int64_t length) {
  Window out;
  out.num_rows = num_rows;
  for (int64_t k = 0; k < length; ++k) out.offsets.push_back(draw_number(draw, is_wild, -5, 5));
  out.pad = is_wild ? static_cast<PadSpec::Mode>(draw.pick(0, 2))
                    : (draw.coin() ? PadSpec::Mode::kEdge : PadSpec::Mode::kFill);
  const Bytes item = draw.take(static_cast<size_t>(draw.pick(0, 6)));
  out.item.assign(item.begin(), item.end());
  if (draw.coin()) {
    out.borders.emplace();
    if (!is_wild) *out.borders = {0, num_samples};
    for (int64_t count = draw.pick(0, 5); count > 0; --count) {
      out.borders->push_back(is_wild ? draw_number(draw, true, -2, num_samples + 3) : draw.pick(0, num_samples));
    }
    std::sort(out.borders->begin(), out.borders->end());  // whoever makes them sees to that
  }
  out.map = static_cast<Window::Map>(draw.pick(0, 2));
  if (!is_wild && num_rows < num_samples && out.map == Window::Map::kNone) out.map = Window::Map::kList;
  if (out.map == Window::Map::kList) {
    const int64_t count = is_wild ? std::max<int64_t>(0, num_samples + draw.pick(-2, 2)) : num_samples;
    for (int64_t s = 0; s < count; ++s) out.rows.push_back(draw_number(draw, is_wild, -1, num_rows - !is_wild));
  }
  if (out.map == Window::Map::kRule) {
    out.first = draw_number(draw, is_wild, -3, num_rows + 3);
    out.step = draw_number(draw, is_wild, -2, 2);
  }
  if (length > 0 && draw.pick(0, 3) == 0) {
    const int64_t low = draw.pick(-6, 6);
    out.lead = LeadSpec{low, low + draw.pick(0, 6), {static_cast<size_t>(draw.pick(0, length - 1))}};
  }
  return out;
}

/// The fields that write to one range of bytes of the rows of a tensor.
struct RowRange {
  SlotSpec slot;
  Window window;
  size_t row_bytes = 0;
  const ManyStores* many = nullptr;  ///< null: rows in memory, or a mask
  bool is_mask = false;
};

const Row& resident() {
  static const Row all = [] {
    Row out;
    for (size_t i = 0; i < kResidentBytes * kResidentRows; ++i) out.push_back(static_cast<uint8_t>(i * 31 + 7));
    return out;
  }();
  return all;
}

/// Tensor 0: an array in several stores. Tensor 1: another one beside rows in memory. Tensor 2: a mask of tensor 0. Tensor
/// 3: the index.
class Drawn {
 public:
  Drawn(Draw& draw, bool is_wild, int64_t num_samples) {
    const Stored& stored = draw_stored(draw);
    ranges_.reserve(4);
    const size_t both = ManyStores::kRowBytes + kResidentBytes;
    const Window of_one = draw_window(draw, is_wild, num_samples, stored.one.num_rows(), draw.pick(0, 4));
    const int64_t length = draw.pick(0, 4);
    add_stored(stored.one, {{0, ManyStores::kRowBytes, 0}, of_one, ManyStores::kRowBytes});
    add_stored(stored.other, {{1, both, kResidentBytes},
                              draw_window(draw, is_wild, num_samples, stored.other.num_rows(), length),
                              ManyStores::kRowBytes});
    FieldSpec in_memory;
    in_memory.kind = FieldSpec::Kind::kResident;
    in_memory.rows = resident().data();
    in_memory.sample_bytes = kResidentBytes;
    add({{1, both, 0}, draw_window(draw, is_wild, num_samples, kResidentRows, length), kResidentBytes},
        std::move(in_memory));
    FieldSpec mask;
    mask.kind = FieldSpec::Kind::kPadMask;
    RowRange masked{{2, 1, 0}, of_one, 1, nullptr, true};
    masked.window.map = Window::Map::kNone;
    masked.window.pad = PadSpec::Mode::kFill;
    add(std::move(masked), std::move(mask));
    fields.emplace_back().kind = FieldSpec::Kind::kIndex;
    fields.back().slot = SlotSpec{3, sizeof(int64_t), 0};
    if (is_wild && draw.byte() % 8 == 0) change_slot(draw);
  }

  /// Whether a field has no row map, and not as many rows as the plan has samples.
  [[nodiscard]] bool is_too_short(int64_t num_samples) const {
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const RowRange& range) {
      return !range.is_mask && range.window.map == Window::Map::kNone && range.window.num_rows < num_samples;
    });
  }
  /// Whether a sample lacks a row that nothing takes the place of.
  [[nodiscard]] bool lacks_a_row(int64_t sample, const EpochPlan& plan) const {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [&](const RowRange& range) { return !range.window.rows_of(sample, plan).has_value(); });
  }
  void check(const ReadyBatch& batch, int64_t slot, int64_t sample, const EpochPlan& plan) const {
    for (const RowRange& range : ranges_) {
      const auto rows = range.window.rows_of(sample, plan);
      if (!rows) FAIL("sample " + std::to_string(sample) + " lacks a row, and arrived");
      for (size_t k = 0; k < rows->size(); ++k) {
        const size_t at = (static_cast<size_t>(slot) * rows->size() + k) * range.slot.row_bytes + range.slot.offset;
        if (expected(range, (*rows)[k]) ==
            Row(batch.buffers[range.slot.tensor] + at, batch.buffers[range.slot.tensor] + at + range.row_bytes)) {
          continue;
        }
        FAIL("tensor " + std::to_string(range.slot.tensor) + ": row " + std::to_string(k) + " of sample " +
             std::to_string(sample) + " is not row " + std::to_string((*rows)[k]));
      }
    }
  }

  std::vector<FieldSpec> fields;
  bool has_changed_slot = false;

 private:
  void add_stored(const ManyStores& many, RowRange range) {
    range.many = &many;
    const RowRange& added = ranges_.emplace_back(std::move(range));
    for (FieldSpec& field : many.fields(added.slot)) {
      added.window.apply(field);
      fields.push_back(std::move(field));
    }
  }

  void add(RowRange range, FieldSpec field) {
    const RowRange& added = ranges_.emplace_back(std::move(range));
    added.window.apply(field);
    field.slot = added.slot;
    fields.push_back(std::move(field));
  }

  void change_slot(Draw& draw) {
    has_changed_slot = true;
    SlotSpec& slot = *fields[static_cast<size_t>(draw.pick(0, std::ssize(fields) - 1))].slot;
    size_t* const numbers[] = {&slot.tensor, &slot.row_bytes, &slot.offset};
    *numbers[draw.pick(0, 2)] = static_cast<size_t>(draw.pick(0, 40));
  }

  static Row expected(const RowRange& range, int64_t row) {
    if (range.is_mask) return {row < 0 ? uint8_t{1} : uint8_t{0}};
    if (row >= 0 && range.many != nullptr) return range.many->row(row);
    Row out;
    for (size_t i = 0; i < range.row_bytes; ++i) {
      const Row& item = range.window.item;
      const size_t at = static_cast<size_t>(std::max<int64_t>(row, 0)) * kResidentBytes + i;
      out.push_back(row >= 0 ? resident()[at] : item.empty() ? uint8_t{0} : item[i % item.size()]);
    }
    return out;
  }

  std::vector<RowRange> ranges_;
};

PlanSpec draw_plan_spec(Draw& draw, int64_t num_samples) {
  PlanSpec spec;
  spec.num_samples = num_samples;
  spec.shuffle = draw.coin();
  spec.seed = draw.byte();
  spec.block_rows = draw.pick(1, 12);
  spec.lanes = std::min(draw.pick(1, 5), num_samples);
  spec.mix = draw.pick(1, 3);
  spec.first = draw.pick(0, 1);
  spec.stride = spec.first + draw.pick(1, 2);
  if (spec.first >= num_samples) spec.first = 0;
  for (int64_t block = 0; block < spec.num_blocks(); ++block) spec.block_order.push_back(block);
  std::mt19937_64 random(spec.seed);
  if (spec.shuffle) std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
  if (draw.pick(0, 3) == 0) spec.select(random);
  return spec;
}

/// Sets some numbers of a plan to others.
void change_plan(Draw& draw, OwnedPlan& plan) {
  std::vector<int64_t>* const all[] = {&plan.segment_first,  &plan.segment_rows,  &plan.segment_start,
                                       &plan.segment_length, &plan.segment_block, &plan.group_offset,
                                       &plan.group_number,   &plan.first_step,    &plan.last_step};
  for (int64_t count = draw.pick(1, 3); count > 0; --count) {
    if (plan.selected != nullptr && draw.pick(0, 9) == 0) {
      std::vector<int64_t> samples(static_cast<size_t>(plan.selected->length()));
      plan.selected->list(0, samples);
      samples[static_cast<size_t>(draw.pick(0, std::ssize(samples) - 1))] += draw.pick(-3, 3);
      plan.selected = testing::listed_table(std::move(samples));
      continue;
    }
    std::vector<int64_t>& numbers = *draw.one_of(all);
    if (numbers.empty()) continue;
    int64_t& number = numbers[static_cast<size_t>(draw.pick(0, std::ssize(numbers) - 1))];
    number = draw.pick(0, 3) == 0 ? kTelling[draw.pick(0, 3)] : number + draw.pick(-3, 3);
  }
  plan.bind();
}

EngineOptions draw_options(Draw& draw) {
  EngineOptions options;
  options.num_threads = static_cast<size_t>(draw.pick(1, 4));
  options.num_fetch_threads = static_cast<size_t>(draw.pick(0, 3));
  options.batch_size = draw.pick(1, 9);
  options.provided_memory = draw.pick(0, 3) != 0;  // mostly: a sanitizer sees the end of such buffers
  options.cache_bytes = draw.coin() ? 3000 : 0;
  options.carry_bytes = draw.coin() ? 3000 : 0;
  options.caller_runs = draw.coin();
  options.skip_bad = draw.coin();
  return options;
}

bool is_of_plan(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr && (ours->kind() == ErrorKind::kConfig || ours->kind() == ErrorKind::kBudget);
}

/// One epoch: true if it came to its end, false if an error of the plan ended it.
bool read(Engine& engine, testing::ProvidedMemory& provided, const Drawn& drawn,
          const std::shared_ptr<const OwnedPlan>& plan, const EngineOptions& options, const std::vector<int64_t>* order,
          int64_t more_open) {
  try {
    const int64_t required = Engine::required_open_batches(plan->plan, options.batch_size);
    const int64_t open = std::min<int64_t>(required, 200) + more_open;
    engine.start(plan, open);
    if (options.provided_memory) provided.provide(engine, open);
    int64_t step = 0;
    for (int waits = 0;;) {
      ReadyBatch batch;
      const NextStatus status = engine.next(batch, std::chrono::milliseconds(100));
      if (status == NextStatus::kEnd) break;
      if (status == NextStatus::kTimeout) {
        if (++waits == kMaxWaits) FAIL("the epoch hangs");
        continue;
      }
      waits = 0;
      CHECK(batch.skipped.slots.empty());
      for (int64_t slot = 0; slot < batch.rows && !drawn.has_changed_slot; ++slot, ++step) {
        int64_t sample = -1;
        std::memcpy(&sample, batch.buffers[3] + static_cast<size_t>(slot) * sizeof(sample), sizeof(sample));
        CHECK(sample >= 0 && sample < plan->plan.num_samples);
        if (order != nullptr) CHECK_EQ(sample, order->at(static_cast<size_t>(step)));
        drawn.check(batch, slot, sample, plan->plan);
      }
      for (size_t t = 0; t < engine.num_tensors() && !options.provided_memory; ++t) {
        engine.memory(t)->release(batch.buffers[t]);
      }
      if (options.provided_memory) provided.provide(engine);
    }
    if (!drawn.has_changed_slot) CHECK_EQ(step, plan->plan.steps);
  } catch (const std::exception& error) {
    if (!is_of_plan(error)) throw;
    engine.stop();
    return false;
  }
  engine.stop();
  return true;
}

void run_input(Bytes input) {
  Draw draw(input);
  const uint8_t manner = draw.byte();
  const bool is_wild = manner % 4 == 0;
  const bool has_changed_plan = manner % 4 == 1;
  const EngineOptions options = draw_options(draw);
  const PlanSpec spec = draw_plan_spec(draw, draw.pick(1, is_wild ? kMaxSamples + 2 : kMaxSamples));
  const int64_t more_open = draw.pick(0, 3);
  auto plan = testing::build_plan(spec);
  if (has_changed_plan) change_plan(draw, *plan);
  const std::shared_ptr<const OwnedPlan> owned = std::move(plan);
  const Drawn drawn(draw, is_wild, spec.num_samples);
  std::unique_ptr<Engine> engine;
  testing::ProvidedMemory provided;
  try {
    engine = std::make_unique<Engine>(drawn.fields, options);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kConfig || !drawn.has_changed_slot) throw;
    return;
  }
  const std::vector<int64_t> order = testing::reference_order(spec);
  const bool is_refused =
      drawn.is_too_short(spec.num_samples) ||
      std::any_of(order.begin(), order.end(), [&](int64_t sample) { return drawn.lacks_a_row(sample, owned->plan); });
  for (int epoch = 0; epoch < 2; ++epoch) {
    const bool ended = read(*engine, provided, drawn, owned, options, has_changed_plan ? nullptr : &order, more_open);
    if (has_changed_plan || drawn.has_changed_slot) continue;
    if (ended == is_refused) FAIL(ended ? "an epoch ended that lacks rows" : "an epoch with all rows was refused");
  }
}

std::vector<ByteVector> make_seeds() {
  std::vector<ByteVector> seeds;
  std::mt19937_64 random(1);
  for (size_t number = 0; number < 60; ++number) {
    ByteVector& seed = seeds.emplace_back(60 + number * 5);
    for (uint8_t& byte : seed) byte = static_cast<uint8_t>(random());
    seed.front() = static_cast<uint8_t>(number);
  }
  return seeds;
}

std::vector<Finding> findings() {
  return {};
}

const Target target("fields", run_input, make_seeds, findings, kSlowChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::fields_fuzz
