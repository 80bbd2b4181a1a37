// Which row a sample has at a distance from its own, and what takes the place of a row that it lacks. The invariant:
// find_row() never gives a row of another segment or one that the array lacks; it gives -1 for a row that is padded, or
// refuses where nothing takes its place.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/stats.h"
#include "spec/field_spec.h"
#include "tests/support/check.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/many_stores.h"
#include "tests/support/plans.h"
#include "transform/output.h"

namespace zarrfeed::testing::output_rows_test {
namespace {

/// A field of rows in memory that are never looked at.
FieldSpec resident(int64_t num_rows, size_t row_bytes = 1) {
  FieldSpec spec;
  spec.kind = FieldSpec::Kind::kResident;
  spec.sample_bytes = row_bytes;
  spec.num_rows = num_rows;
  return spec;
}

/// A stored field of that many rows of one byte, whose chunks are never looked at.
FieldSpec stored(int64_t num_rows) {
  FieldSpec spec;
  spec.array.shape = {num_rows};
  spec.array.chunk_shape = {4};
  spec.array.storage_order = {0};
  spec.array.item_bytes = 1;
  spec.array.fill = {0};
  return spec;
}

}  // namespace

TEST(rows_of_windows_are_those_of_the_definition) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    const Context context("case " + std::to_string(i));
    const int64_t num_samples = pick(random, 1, 30);
    const int64_t num_rows = random() % 2 == 0 ? num_samples : pick(random, 1, 30);
    const WindowRows window = random_rows(random, num_samples, num_rows, pick(random, 1, 5));
    FieldSpec spec = random() % 2 == 0 ? stored(num_rows) : resident(num_rows);
    window.apply(spec);
    const Output field(spec);
    CHECK(!field.is_direct());
    const std::vector<int64_t> all = {0, num_samples};
    const std::vector<int64_t>& borders = window.borders.empty() ? all : window.borders;
    for (size_t s = 0; s + 1 < borders.size(); ++s) {
      for (int64_t sample = borders[s]; sample < borders[s + 1]; ++sample) {
        const std::vector<int64_t> expected = window.rows(sample);
        for (size_t k = 0; k < expected.size(); ++k) {
          CHECK_EQ(field.find_row(sample, window.offsets[k], borders[s], borders[s + 1]), expected[k]);
        }
      }
    }
  }
}

TEST(distances_and_row_maps_beyond_64_bits_lead_outside) {
  FieldSpec spec = resident(100);
  spec.offsets = {0};
  spec.pad.mode = PadSpec::Mode::kEdge;
  const Output edge(spec);
  CHECK_EQ(edge.find_row(12, INT64_MAX, 10, 20), int64_t{19});
  CHECK_EQ(edge.find_row(12, INT64_MIN, 10, 20), int64_t{10});
  for (const int64_t step : {INT64_MAX, INT64_MIN}) {
    spec.row_map = RowMapSpec{.first = step, .step = step};
    const Output mapped(spec);
    CHECK_EQ(mapped.find_row(12, 0, 10, 20), int64_t{-1});
    CHECK_EQ(mapped.find_row(1, 0, 0, 20), int64_t{-1});
  }
}

TEST(padding_stays_inside_of_the_segment) {
  FieldSpec spec = resident(100);
  spec.offsets = {0};
  spec.pad.mode = PadSpec::Mode::kEdge;
  const Output edge(spec);
  CHECK_EQ(edge.find_row(10, -3, 10, 20), int64_t{10});
  CHECK_EQ(edge.find_row(19, 3, 10, 20), int64_t{19});
  CHECK_EQ(edge.find_row(10, 9, 10, 20), int64_t{19});
  spec.pad.mode = PadSpec::Mode::kFill;
  const Output fill(spec);
  CHECK_EQ(fill.find_row(10, -1, 10, 20), int64_t{-1});
  CHECK_EQ(fill.find_row(19, 1, 10, 20), int64_t{-1});
  CHECK_EQ(fill.find_row(19, 0, 10, 20), int64_t{19});
}

TEST(an_edge_that_the_row_map_lacks_is_padded) {
  const std::vector<int64_t> rows = {-1, 7, -5, 2};
  for (FieldSpec spec : {resident(8), stored(8)}) {
    spec.offsets = {-1, 0};
    spec.row_map = RowMapSpec{.rows = rows.data(), .num_samples = 4};
    spec.pad.mode = PadSpec::Mode::kEdge;
    const Output field(spec);
    CHECK_EQ(field.find_row(0, -1, 0, 4), int64_t{-1});  // the edge is sample 0
    CHECK_EQ(field.find_row(1, 0, 0, 4), int64_t{7});
    CHECK_EQ(field.find_row(2, 0, 0, 4), int64_t{-1});
    CHECK_EQ(field.find_row(3, 1, 0, 4), int64_t{2});
  }
}

TEST(runs_of_samples_have_rows_side_by_side_or_one_row) {
  const std::vector<int64_t> runs = {0, 3, 4, 9, 4, 0, -1, 20};  // of 12 samples; the row that each begins with
  const std::vector<int64_t> side_by_side = {4, 5, 6, 0, -1, -1, -1, -1, -1, 20, 21, 22};
  const std::vector<int64_t> same = {4, 4, 4, 0, -1, -1, -1, -1, -1, 20, 20, 20};
  for (FieldSpec spec : {resident(23), stored(23)}) {
    spec.offsets = {0};
    spec.pad.mode = PadSpec::Mode::kFill;
    for (const int64_t step : {1, 0}) {
      spec.row_map = RowMapSpec{.rows = runs.data(), .num_samples = 12, .step = step, .num_runs = 4};
      const Output field(spec);
      int64_t run = 0;
      for (const int64_t turn : {1, 5, 7, 11}) {  // in any order
        for (int64_t i = 0; i < 12; ++i) {
          const int64_t sample = i * turn % 12;
          const int64_t expected = (step == 1 ? side_by_side : same)[static_cast<size_t>(sample)];
          CHECK_EQ(field.find_rows(sample, 0, 1, 0, 12, run).row, expected);
          CHECK_EQ(field.find_row(sample, 0, 0, 12), expected);
        }
      }
      CHECK_EQ(field.find_row(11, 1, 0, 12), int64_t{-1});
      CHECK_THROWS(kConfig, "sample 12 is not in the row map", field.find_row(12, 0, 0, 13));
    }
  }
}

TEST(rows_that_are_found_together_are_those_that_are_found_one_by_one) {
  std::mt19937_64 random(5);
  int64_t together = 0;
  for (int i = 0; i < 300; ++i) {
    const Context context("case " + std::to_string(i));
    const int64_t num_samples = pick(random, 1, 30);
    const int64_t num_rows = random() % 2 == 0 ? num_samples : pick(random, 1, 30);
    FieldSpec spec = random() % 2 == 0 ? stored(num_rows) : resident(num_rows);
    const WindowRows window = random_rows(random, num_samples, num_rows, 1);
    window.apply(spec);
    std::vector<int64_t> runs;  // in place of the map, of runs of rows
    if (random() % 3 == 0) {
      const int64_t count = pick(random, 1, std::min<int64_t>(4, num_samples));
      for (int64_t run = 0; run < count; ++run) runs.push_back(run * num_samples / count);
      for (int64_t run = 0; run < count; ++run) {
        const int64_t begin = runs[static_cast<size_t>(run)];
        const int64_t length = (run + 1) * num_samples / count - begin;
        runs.push_back(length > num_rows || random() % 4 == 0 ? -1 : pick(random, 0, num_rows - length));
      }
      const auto step = static_cast<int64_t>(random() % 2);
      spec.row_map = RowMapSpec{.rows = runs.data(), .num_samples = num_samples, .step = step, .num_runs = count};
      if (spec.pad.mode == PadSpec::Mode::kNone) spec.pad.mode = PadSpec::Mode::kFill;
    }
    const Output field(spec);
    const bool pads = spec.pad.mode != PadSpec::Mode::kNone;
    for (int64_t sample = 0; sample < num_samples; ++sample) {
      const int64_t offset = pick(random, pads ? -5 : -sample, num_samples - sample - 1);
      const int64_t most = pick(random, 1, std::max<int64_t>(1, num_samples - sample - offset) + (pads ? 5 : 0));
      int64_t run = 0;
      for (int64_t at = 0; at < most;) {
        Output::Rows found{};
        try {
          found = field.find_rows(sample, offset + at, most - at, 0, num_samples, run);
        } catch (const Error&) {
          CHECK_THROWS(kConfig, "", field.find_row(sample, offset + at, 0, num_samples));
          ++at;
          continue;
        }
        CHECK(found.count >= 1 && found.count <= most - at);
        for (int64_t k = 0; k < found.count; ++k) {
          CHECK_EQ(found.row + k * found.row_step, field.find_row(sample, offset + at + k, 0, num_samples));
        }
        if (found.count > 1) ++together;
        at += found.count;
      }
    }
  }
  CHECK(together > 300);
}

TEST(stretches_are_written_as_their_rows_are) {
  std::mt19937_64 random(6);
  size_t joined = 0;
  for (int i = 0; i < 600; ++i) {
    const Context context("case " + std::to_string(i));
    const int64_t rows = pick(random, 1, 40), items = pick(random, 1, 4);
    FieldSpec spec;
    const bool is_stored = random() % 2 == 0;
    if (is_stored) {
      spec.array.shape = {rows, items};
      spec.array.chunk_shape = {rows, random() % 4 == 0 ? pick(random, 1, items) : items};
      spec.array.storage_order = {0, 1};
      if (random() % 4 == 0) spec.array.storage_order = {1, 0};
      spec.array.item_bytes = 2;
      spec.array.swap_bytes = random() % 3 == 0 ? 2 : 0;
      spec.array.fill = {1, 2};
    } else {
      const FieldSpec::Kind kinds[] = {FieldSpec::Kind::kResident, FieldSpec::Kind::kIndex, FieldSpec::Kind::kPadMask};
      spec.kind = kinds[random() % 3];
      spec.num_rows = rows;
      spec.sample_bytes = 2 * static_cast<size_t>(items);
    }
    const bool has_items = is_stored || spec.kind == FieldSpec::Kind::kResident;
    if (has_items && random() % 2 == 0) {
      spec.conversion.emplace();
      spec.conversion->from = ItemType::kInt16;
      spec.conversion->to = ItemType::kFloat32;
      if (random() % 2 == 0) {
        spec.conversion->steps = {{StepKind::kNormalize, {1, 2}, {2, 3}, static_cast<size_t>(pick(random, 1, 2))}};
      }
    }
    spec.pad.mode = PadSpec::Mode::kFill;
    if (random() % 2 == 0) spec.pad.item = {9, 8};
    const size_t row_bytes = Output(spec).row_bytes();
    const bool shares = random() % 4 == 0;
    if (shares) spec.slot = SlotSpec{.tensor = 0, .row_bytes = row_bytes + 3, .offset = 1};
    const Output field(spec);
    std::vector<uint8_t> values(static_cast<size_t>(rows * items) * 2);
    for (uint8_t& byte : values) byte = static_cast<uint8_t>(random());
    const GuardedBytes memory(values);
    if (!is_stored) spec.rows = memory.span().data();
    const Output of_memory(spec);

    // Stretches one behind the other, with a row between some of them that nobody writes.
    std::vector<StretchTarget> stretches;
    std::vector<RowTarget> targets;
    const size_t size = 40 * (row_bytes + 3);
    const GuardedBytes got(size), expected(size);
    std::ranges::fill(got.span(), uint8_t{0xaa});
    std::ranges::fill(expected.span(), uint8_t{0xaa});
    const bool pads = random() % 4 == 0, fills = is_stored && random() % 4 == 0;
    for (size_t at = random() % 2; at < 30; at += 1 + random() % 2) {
      const int64_t count = pick(random, 1, std::min<int64_t>(8, rows));
      const auto step = static_cast<int64_t>(random() % 2);
      const int64_t row = pads ? -1 : pick(random, 0, rows - 1 - step * (count - 1));
      stretches.push_back({row, got.span().data() + at * field.slot_bytes(), count, pads ? 0 : step});
      for (int64_t k = 0; k < count; ++k, ++at) {
        targets.push_back({pads ? -1 : row + k * step, expected.span().data() + at * field.slot_bytes()});
      }
    }
    Stats stats, of_rows;
    if (pads && spec.kind != FieldSpec::Kind::kIndex) {
      of_memory.scatter_pad(stretches);
      of_memory.scatter_pad(targets);
    } else if (!is_stored) {
      of_memory.scatter_resident(stretches);
      of_memory.scatter_resident(targets);
    } else {
      const bool streaming = random() % 2 == 0;
      for (size_t cell = 0; cell < field.num_cells(); ++cell) {
        std::vector<StretchTarget> of_cell = stretches;
        std::vector<RowTarget> rows_of_cell = targets;
        if (field.box(cell).joins_rows(field.slot_bytes())) ++joined;
        if (fills) {
          field.scatter_fill(cell, of_cell);
          field.scatter_fill(cell, rows_of_cell);
        } else {
          field.scatter_decoded(0, cell, memory.span().data(), of_cell, stats, streaming);
          field.scatter_decoded(0, cell, memory.span().data(), rows_of_cell, of_rows, streaming);
        }
      }
    }
    CHECK(std::ranges::equal(got.span(), expected.span()));
    CHECK_EQ(stats.bytes_scattered.load(), of_rows.bytes_scattered.load());
  }
  CHECK(joined > 30);
}

TEST(a_row_that_nothing_takes_the_place_of_is_refused) {
  const std::vector<int64_t> rows = {3, -1, 8};
  for (FieldSpec spec : {resident(8), stored(8)}) {
    const Output plain(spec);
    CHECK_THROWS(kConfig, "the window of sample 2 reaches beyond the array, to -1", plain.find_row(2, -3, 0, 8));
    CHECK_THROWS(kConfig, "the window of sample 5 reaches beyond the array, to 8", plain.find_row(5, 3, 0, 8));
    spec.row_map = RowMapSpec{.rows = rows.data(), .num_samples = 3};
    const Output mapped(spec);
    CHECK_EQ(mapped.find_row(0, 0, 0, 8), int64_t{3});
    CHECK_THROWS(kConfig, "the array has no row of sample 1", mapped.find_row(1, 0, 0, 8));
    CHECK_THROWS(kConfig, "sample 2 has row 8 of 8", mapped.find_row(2, 0, 0, 8));
    CHECK_THROWS(kConfig, "sample 3 is not in the row map", mapped.find_row(3, 0, 0, 8));
    spec.pad.mode = PadSpec::Mode::kFill;  // padding does not hide a row map that is wrong
    const Output padded(spec);
    CHECK_EQ(padded.find_row(1, 0, 0, 8), int64_t{-1});
    CHECK_THROWS(kConfig, "sample 2 has row 8 of 8", padded.find_row(2, 0, 0, 8));
    CHECK_THROWS(kConfig, "sample 3 is not in the row map", padded.find_row(3, 0, 0, 8));
    spec.row_map = RowMapSpec{.first = -2, .step = 3};  // rows -2, 1, 4, 7, 10
    const Output regular(spec);
    CHECK_EQ(regular.find_row(0, 0, 0, 8), int64_t{-1});
    CHECK_EQ(regular.find_row(3, 0, 0, 8), int64_t{7});
    CHECK_EQ(regular.find_row(4, 0, 0, 8), int64_t{-1});
  }
}

TEST(padded_rows_are_items_to_their_last_byte_and_no_further) {
  for (const std::vector<uint8_t>& item : {std::vector<uint8_t>{}, {9}, {1, 2}, {1, 2, 3, 4}}) {
    FieldSpec spec = resident(1, 12);
    spec.pad = {.mode = PadSpec::Mode::kFill, .item = item, .borders = nullptr};
    const Output field(spec);
    const GuardedBytes out(36);
    std::fill(out.span().begin(), out.span().end(), uint8_t{0xaa});
    std::vector<RowTarget> targets = {{-1, out.span().data()}, {-1, out.span().data() + 24}};
    field.scatter_pad(targets);
    for (size_t i = 0; i < 36; ++i) {
      const uint8_t expected = i >= 12 && i < 24 ? 0xaa : item.empty() ? 0 : item[i % item.size()];
      CHECK_EQ(out.span()[i], expected);
    }
  }
}

TEST(padded_rows_of_a_shared_tensor_leave_the_rows_beside_them) {
  FieldSpec spec = resident(2, 3);
  const std::vector<uint8_t> rows = {1, 2, 3, 4, 5, 6};
  spec.rows = rows.data();
  spec.slot = SlotSpec{.tensor = 0, .row_bytes = 8, .offset = 4};
  spec.offsets = {-1, 0};
  spec.pad = {.mode = PadSpec::Mode::kFill, .item = {7}, .borders = nullptr};
  const Output field(spec);
  CHECK_EQ(field.row_bytes(), size_t{3});
  CHECK_EQ(field.slot_bytes(), size_t{8});
  CHECK_EQ(field.slot_offset(), size_t{4});
  CHECK_EQ(field.sample_bytes(), size_t{16});
  std::vector<uint8_t> out(8, 0);
  std::vector<RowTarget> targets = {{-1, out.data()}, {1, out.data() + 4}};
  field.scatter_resident(targets);
  CHECK_EQ(out, (std::vector<uint8_t>{7, 7, 7, 0, 4, 5, 6, 0}));
}

TEST(a_mask_says_which_rows_are_padded) {
  FieldSpec spec;
  spec.kind = FieldSpec::Kind::kPadMask;
  spec.offsets = {-1, 0, 1};
  spec.pad.mode = PadSpec::Mode::kFill;
  const Output mask(spec);
  CHECK(!mask.is_direct());
  CHECK(!mask.is_stored());
  CHECK_EQ(mask.row_bytes(), size_t{1});
  CHECK_EQ(mask.sample_bytes(), size_t{3});
  std::vector<uint8_t> out(3, 0xaa);
  std::vector<RowTarget> targets;
  for (size_t k = 0; k < 3; ++k) targets.push_back({mask.find_row(0, spec.offsets[k], 0, 2), out.data() + k});
  mask.scatter_resident(targets);
  CHECK_EQ(out, (std::vector<uint8_t>{1, 0, 0}));
}

}  // namespace zarrfeed::testing::output_rows_test
