#include "tests/support/reading.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "base/division.h"
#include "base/error.h"
#include "engine/chunks/row_runs.h"
#include "spec/field_spec.h"
#include "tests/support/check.h"

namespace zarrfeed::testing {
namespace {

constexpr std::chrono::seconds kStopTimeout{60};

/// Chunks of a source along the sample axis, of all parts.
int64_t num_chunks(const ArraySource& source) {
  const ArraySpec& array = source.array();
  if (array.parts != nullptr) return array.parts->chunk_of(array.parts->end.back() - 1) + 1;
  return (array.shape[static_cast<size_t>(array.sample_axis)] - 1) / source.rows_per_chunk() + 1;
}

}  // namespace

Dataset::Dataset(std::vector<ArrayLayout> layouts, bool with_resident, bool with_index) : index(with_index) {
  for (ArrayLayout& layout : layouts) {
    const std::string name = "array" + std::to_string(arrays.size());
    arrays.push_back(std::make_unique<TestArray>(directory.path() / name, std::move(layout)));
  }
  if (!with_resident) return;
  for (int64_t i = 0; i < num_samples() * static_cast<int64_t>(kResidentBytes); ++i) {
    resident.push_back(static_cast<uint8_t>(i * 31 + i / 256));
  }
}

std::vector<FieldSpec> Dataset::fields() const {
  std::vector<FieldSpec> out;
  for (const auto& array : arrays) out.push_back(array->field());
  if (!resident.empty()) {
    FieldSpec& field = out.emplace_back();
    field.kind = FieldSpec::Kind::kResident;
    field.rows = resident.data();
    field.sample_bytes = kResidentBytes;
  }
  if (index) out.emplace_back().kind = FieldSpec::Kind::kIndex;
  for (const size_t array : again) {
    out.push_back(arrays[array]->field());
    out.back().source = array;
  }
  for (size_t f = 0; f < offsets.size(); ++f) out[f].offsets = offsets[f];
  return out;
}

void Dataset::add_windows(std::mt19937_64& random) {
  offsets.assign(num_fields(), {});
  const int64_t reach = std::min<int64_t>(9, (num_samples() - 1) / 2);
  for (size_t f = 0; f < offsets.size(); ++f) {
    if (index && f + 1 == first_again()) continue;
    auto& of_field = offsets[f];
    const int64_t count = pick(random, 0, 5);
    for (int64_t i = 0; i < count; ++i) {
      of_field.push_back(pick(random, -reach, reach));
      first_window = std::max(first_window, -of_field.back());
      end_window = std::max(end_window, of_field.back());
    }
  }
  end_window = num_samples() - end_window;
}

std::vector<uint8_t> Dataset::expected(size_t field, int64_t sample) const {
  if (field >= offsets.size() || offsets[field].empty()) return row(field, sample);
  std::vector<uint8_t> window;
  for (const int64_t offset : offsets[field]) {
    const std::vector<uint8_t> bytes = row(field, sample + offset);
    window.insert(window.end(), bytes.begin(), bytes.end());
  }
  return window;
}

std::vector<uint8_t> Dataset::row(size_t field, int64_t sample) const {
  if (field >= first_again()) return arrays[again[field - first_again()]]->sample(sample);
  if (field < arrays.size()) return arrays[field]->sample(sample);
  if (field == arrays.size() && !resident.empty()) {
    const auto begin = resident.begin() + sample * static_cast<int64_t>(kResidentBytes);
    return {begin, begin + static_cast<std::ptrdiff_t>(kResidentBytes)};
  }
  std::vector<uint8_t> bytes(sizeof(sample));
  std::memcpy(bytes.data(), &sample, sizeof(sample));
  return bytes;
}

bool Dataset::drop_from_page_cache() const {
  return testing::drop_from_page_cache(directory.path());
}

Dataset simple_dataset(int64_t num_samples, int64_t rows, Packing packing) {
  return {{{.shape = {num_samples, 5}, .chunk_shape = {rows, 5}, .packing = packing}}, false, false};
}

EngineOptions with_threads(size_t num_threads, int64_t batch_size) {
  return {.num_threads = num_threads, .num_fetch_threads = 4, .batch_size = batch_size};
}

Dataset rich_dataset() {
  return {
      {{.shape = {100, 6, 5}, .chunk_shape = {8, 4, 5}, .packing = Packing::kBlosc},
       {.shape = {3, 100}, .chunk_shape = {2, 13}, .sample_axis = 1, .packing = Packing::kZstd, .big_endian = true}},
      true,
      true};
}

PlanSpec shuffled_plan_spec(const Dataset& data, int64_t block_rows, int64_t lanes, uint64_t seed) {
  PlanSpec spec;
  spec.seed = seed;
  spec.shuffle = true;
  spec.num_samples = data.num_samples();
  spec.block_rows = block_rows;
  spec.lanes = lanes;
  for (int64_t block = 0; block < spec.num_blocks(); ++block) spec.block_order.push_back(block);
  std::mt19937_64 random(seed);
  std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
  return spec;
}

PlanSpec plan_spec_of_windows(const Dataset& data, int64_t block_rows) {
  PlanSpec spec;
  spec.num_samples = data.num_samples();
  spec.block_rows = block_rows;
  for (int64_t s = data.first_window; s < data.end_window; ++s) spec.selected.push_back(s);
  for (int64_t block = 0; block < spec.num_blocks(); ++block) {
    if (!spec.samples_of(block).empty()) spec.block_order.push_back(block);
  }
  return spec;
}

std::unique_ptr<ReadyBatch> take(Engine& engine) {
  // One wait, not many short ones: those would hide that nobody wakes the consumer.
  auto batch = std::make_unique<ReadyBatch>();
  const auto begin = std::chrono::steady_clock::now();
  const NextStatus status = engine.next(*batch, kStopTimeout);
  if (status == NextStatus::kEnd) return nullptr;
  if (status == NextStatus::kTimeout) FAIL("no batch within a minute");
  if (std::chrono::steady_clock::now() - begin >= kStopTimeout)
    FAIL("a batch was ready, and the consumer was not woken");
  return batch;
}

void check_batch(const Engine& engine, const Dataset& data, const ReadyBatch& batch, int64_t number, int64_t batch_size,
                 const std::vector<int64_t>& order) {
  const Context context("batch " + std::to_string(number));
  CHECK_EQ(batch.rows, std::min(batch_size, std::ssize(order) - number * batch_size));
  CHECK_EQ(batch.buffers.size(), data.num_fields());
  for (size_t f = 0; f < batch.buffers.size(); ++f) {
    const size_t bytes = engine.outputs()[f].sample_bytes();
    for (int64_t slot = 0; slot < batch.rows; ++slot) {
      const int64_t sample = order[static_cast<size_t>(number * batch_size + slot)];
      const std::vector<uint8_t> expected = data.expected(f, sample);
      CHECK_EQ(expected.size(), bytes);
      if (std::memcmp(batch.buffers[f] + static_cast<size_t>(slot) * bytes, expected.data(), bytes) != 0) {
        FAIL("field " + std::to_string(f) + ", slot " + std::to_string(slot) + " is not sample " +
             std::to_string(sample));
      }
    }
  }
}

void release(const Engine& engine, const ReadyBatch& batch) {
  for (size_t f = 0; f < batch.buffers.size(); ++f) engine.memory(f)->release(batch.buffers[f]);
}

void ProvidedMemory::provide(Engine& engine, int64_t batches) {
  for (; batches > 0; --batches) {
    std::vector<uint8_t*> addresses;
    for (size_t t = 0; t < engine.num_tensors(); ++t) {
      buffers_.push_back(std::make_unique<uint8_t[]>(engine.memory(t)->buffer_bytes()));
      addresses.push_back(buffers_.back().get());
    }
    engine.provide_buffers(addresses);
  }
}

void cut_chunks(OwnedPlan& plan, const OutputTable& outputs, std::mt19937_64& random) {
  plan.run_rows.assign(outputs.size(), 0);
  plan.bind();
  for (size_t f = 0; f < outputs.size(); ++f) {
    if (outputs.source(f) == nullptr) continue;
    plan.run_rows[f] = pick(random, 0, outputs.source(f)->rows_per_chunk());
    try {
      const RowRuns runs(plan.plan, *outputs.source(f), f);
    } catch (const Error&) {  // the rows of a chunk do not lie side by side
      plan.run_rows[f] = 0;
    }
  }
}

void share_all_chunks(OwnedPlan& plan, const Engine& engine) {
  const size_t groups = plan.group_lane.size();
  plan.next_group.assign(groups, -1);
  plan.carry_begin.assign(1, 0);
  std::map<std::pair<int64_t, int64_t>, size_t> last;
  for (size_t g = 0; g < groups; ++g) {
    const auto lane = std::pair(plan.group_lane[g], plan.group_turn[g]);
    if (const auto before = last.find(lane); before != last.end()) {
      plan.next_group[before->second] = static_cast<int64_t>(g);
    }
    last[lane] = g;
  }
  for (size_t g = 0; g < groups; ++g) {
    for (size_t f = 0; f < engine.outputs().size(); ++f) {
      if (engine.outputs().source(f) == nullptr) continue;
      const ArraySource& source = *engine.outputs().source(f);
      const RowRuns runs(plan.plan, source, f);
      for (int64_t run = 0; runs.chunk_of(run) < num_chunks(source); ++run) {
        plan.carry_source.push_back(static_cast<int64_t>(f));
        plan.carry_chunk.push_back(run);
        plan.carry_on.push_back(plan.next_group[g] >= 0);
      }
    }
    plan.carry_begin.push_back(std::ssize(plan.carry_source));
  }
  plan.bind();
}

void start(Engine& engine, const PlanSpec& spec, int64_t batch_size, int64_t more) {
  auto plan = build_plan(spec);
  const int64_t required = Engine::required_open_batches(plan->plan, batch_size);
  engine.start(std::move(plan), required + more);
}

void start_shared(Engine& engine, const PlanSpec& spec, int64_t batch_size, int64_t more) {
  auto plan = build_plan(spec);
  const int64_t required = Engine::required_open_batches(plan->plan, batch_size);
  share_all_chunks(*plan, engine);
  engine.start(std::move(plan), required + more);
}

int64_t drain(Engine& engine, const Dataset& data, const PlanSpec& spec, int64_t batch_size) {
  const std::vector<int64_t> order = reference_order(spec);
  int64_t batches = 0;
  while (const auto batch = take(engine)) {
    check_batch(engine, data, *batch, batches++, batch_size, order);
    release(engine, *batch);
  }
  CHECK_EQ(batches, ceil_div(spec.num_steps(), batch_size));
  return batches;
}

}  // namespace zarrfeed::testing
