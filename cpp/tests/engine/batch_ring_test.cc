// Open batches: which steps are taken, where their rows go, and when a batch is complete.

#include "engine/batch_ring.h"

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "plan/placement.h"
#include "tests/support/check.h"

namespace zarrfeed::testing::batch_ring_test {
namespace {

int64_t pick(std::mt19937_64& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

/// A ring whose batch b has the buffers b % size; field f of a batch has memory of its own.
struct OwnedRing {
  OwnedRing(int64_t steps, int64_t batch_rows, int64_t batches, int64_t period, size_t fields, size_t sample_bytes)
      : ring(steps, batch_rows, batches, period, fields), batch_size(batch_rows), size(batches) {
    memory.resize(fields, std::vector<uint8_t>(static_cast<size_t>(size * batch_size) * sample_bytes));
  }

  void open(int64_t batch, size_t sample_bytes, int64_t pieces) {
    for (size_t f = 0; f < memory.size(); ++f) ring.buffers(batch)[f] = address_of(f, batch * batch_size, sample_bytes);
    ring.open(batch, pieces);
  }
  [[nodiscard]] uint8_t* address_of(size_t field, int64_t step, size_t sample_bytes) {
    return memory[field].data() + static_cast<size_t>(step % (size * batch_size)) * sample_bytes;
  }

  BatchRing ring;
  int64_t batch_size;
  int64_t size;
  std::vector<std::vector<uint8_t>> memory;
};

/// The steps of one lane from `first` on, `period` apart, below `end`.
std::vector<Placement> lane_of(int64_t first, int64_t period, int64_t end) {
  std::vector<Placement> rows;
  for (int64_t step = first; step < end; step += period) rows.push_back({7 * step, step});
  return rows;
}

}  // namespace

TEST(rows_go_to_the_slots_of_their_steps) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 500; ++i) {
    const int64_t batch_size = pick(random, 1, 9), size = pick(random, 1, 6), period = pick(random, 1, 12);
    const int64_t in_sample = pick(random, 1, 3);
    const int64_t first_batch = pick(random, 0, 20);
    const size_t row_bytes = 3;
    OwnedRing owned((first_batch + size) * batch_size, batch_size, size, period, 2,
                    row_bytes * static_cast<size_t>(in_sample));
    for (int64_t b = first_batch; b < first_batch + size; ++b)
      owned.open(b, row_bytes * static_cast<size_t>(in_sample), 1);
    std::vector<Placement> rows;
    for (int64_t k = pick(random, 0, 30); k > 0; --k) {
      rows.push_back(
          {k, pick(random, first_batch * batch_size * in_sample, (first_batch + size) * batch_size * in_sample - 1)});
    }
    if (random() % 2 == 0) std::sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.step < b.step; });
    std::vector<RowTarget> targets;
    owned.ring.find_targets(rows, 1, in_sample, row_bytes, 0, targets);
    CHECK_EQ(targets.size(), rows.size());
    for (size_t k = 0; k < rows.size(); ++k) {
      const size_t sample_bytes = row_bytes * static_cast<size_t>(in_sample);
      uint8_t* const sample = owned.address_of(1, rows[k].step / in_sample, sample_bytes);
      CHECK_EQ(targets[k].row, rows[k].sample);
      CHECK(targets[k].dest == sample + static_cast<size_t>(rows[k].step % in_sample) * row_bytes);
    }
  }
}

TEST(a_batch_is_complete_when_all_pieces_of_its_rows_are_finished) {
  const int64_t batch_size = 4, lanes = 3, steps = 22, pieces = 2;
  OwnedRing owned(steps, batch_size, 6, lanes, 1, 1);
  for (int64_t b = 0; b < owned.ring.num_batches(); ++b) owned.open(b, 1, pieces);
  CHECK_EQ(owned.ring.num_batches(), int64_t{6});
  CHECK_EQ(owned.ring.rows(5), int64_t{2});
  std::vector<int64_t> complete;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      CHECK(complete.empty());
      owned.ring.finish(lane_of(lane, lanes, steps), 1, [&](int64_t b) { complete.push_back(b); });
    }
  }
  CHECK(complete == (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  for (const int64_t b : complete) CHECK(owned.ring.is_complete(b));
}

TEST(a_batch_that_lacks_one_piece_of_one_row_is_not_complete) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i) {
    const int64_t batch_size = pick(random, 1, 5), pieces = pick(random, 1, 4), in_sample = pick(random, 1, 3);
    const int64_t steps = pick(random, 1, 3 * batch_size);
    OwnedRing owned(steps, batch_size, 3, 1, 1, 1);
    const int64_t batches = owned.ring.num_batches();
    std::vector<Placement> finishes;
    std::vector<int64_t> left(static_cast<size_t>(batches));
    for (int64_t b = 0; b < batches; ++b) {
      owned.open(b, 1, pieces * in_sample);
      left[static_cast<size_t>(b)] = owned.ring.rows(b) * in_sample * pieces;
      CHECK(!owned.ring.is_complete(b));
    }
    for (int64_t row = 0; row < steps * in_sample; ++row) {
      for (int64_t piece = 0; piece < pieces; ++piece) finishes.push_back({0, row});
    }
    std::shuffle(finishes.begin(), finishes.end(), random);
    for (const Placement& row : finishes) {
      const int64_t batch = row.step / (batch_size * in_sample);
      const bool is_last = --left[static_cast<size_t>(batch)] == 0;
      std::vector<int64_t> complete;
      owned.ring.finish(std::vector<Placement>{row}, in_sample, [&](int64_t b) { complete.push_back(b); });
      CHECK(complete == (is_last ? std::vector<int64_t>{batch} : std::vector<int64_t>{}));
      CHECK_EQ(owned.ring.is_complete(batch), is_last);
    }
  }
}

TEST(pieces_that_are_counted_as_they_are_found_complete_a_batch_neither_too_early_nor_never) {
  // A batch is opened with one piece a sample. Before that piece is finished, the pieces of the sample are added; they
  // are finished in any order, also before those of other samples of the batch are added.
  std::mt19937_64 random(4);
  for (int i = 0; i < 300; ++i) {
    const int64_t batch_size = pick(random, 1, 5), in_sample = pick(random, 1, 3), steps = pick(random, 1, 15);
    OwnedRing owned(steps, batch_size, 15, 1, 1, 1);
    std::vector<int64_t> left(
        static_cast<size_t>(owned.ring.num_batches()));  // rows that are not finished, and samples
    for (int64_t b = 0; b < owned.ring.num_batches(); ++b) {
      owned.open(b, 1, 1);
      left[static_cast<size_t>(b)] = owned.ring.rows(b);
    }
    std::vector<int64_t> samples;
    for (int64_t step = 0; step < steps; ++step) samples.push_back(step);
    std::vector<Placement> rows;  // that are added and not finished
    const auto finish = [&](const Placement& row, int64_t rows_of_sample) {
      const int64_t batch = row.step / (batch_size * rows_of_sample);
      const bool is_last = --left[static_cast<size_t>(batch)] == 0;
      std::vector<int64_t> complete;
      owned.ring.finish(std::vector<Placement>{row}, rows_of_sample, [&](int64_t b) { complete.push_back(b); });
      CHECK(complete == (is_last ? std::vector<int64_t>{batch} : std::vector<int64_t>{}));
      CHECK_EQ(owned.ring.is_complete(batch), is_last);
    };
    while (!samples.empty() || !rows.empty()) {
      if (!rows.empty() && (samples.empty() || random() % 2 == 0)) {
        std::swap(rows[random() % rows.size()], rows.back());
        const Placement row = rows.back();
        rows.pop_back();
        finish(row, in_sample);
        continue;
      }
      std::swap(samples[random() % samples.size()], samples.back());
      const int64_t step = samples.back();
      samples.pop_back();
      std::vector<Placement> of_sample;
      for (int64_t k = 0; k < in_sample; ++k) {
        for (int64_t cells = pick(random, 1, 4); cells > 0; --cells) of_sample.push_back({0, step * in_sample + k});
      }
      owned.ring.add(of_sample, in_sample);
      left[static_cast<size_t>(step / batch_size)] += std::ssize(of_sample);
      rows.insert(rows.end(), of_sample.begin(), of_sample.end());
      finish({0, step}, 1);
    }
    for (int64_t b = 0; b < owned.ring.num_batches(); ++b) CHECK(owned.ring.is_complete(b));
  }
}

TEST(rows_of_fields_that_share_a_tensor_go_to_their_offsets) {
  OwnedRing owned(4, 2, 2, 1, 1, 24);
  for (int64_t b = 0; b < 2; ++b) owned.open(b, 24, 1);
  std::vector<RowTarget> targets;
  // Windows of 2 rows of 12 bytes, of which this field has those from byte 5 on; steps 5 and 6 are in samples 2 and 3.
  owned.ring.find_targets(std::vector<Placement>{{30, 5}, {31, 6}}, 0, 2, 12, 5, targets);
  CHECK(targets[0].dest == owned.address_of(0, 2, 24) + 12 + 5);
  CHECK(targets[1].dest == owned.address_of(0, 3, 24) + 5);
}

TEST(stretches_are_found_and_finished_as_their_rows_are) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 200; ++i) {
    const int64_t batch_size = pick(random, 1, 5), in_sample = pick(random, 1, 9), steps = pick(random, 1, 15);
    OwnedRing owned(steps, batch_size, 15, 1, 1, 2 * static_cast<size_t>(in_sample));
    for (int64_t b = 0; b < owned.ring.num_batches(); ++b) owned.open(b, 2 * static_cast<size_t>(in_sample), in_sample);
    std::vector<RowStretch> stretches;
    std::vector<Placement> rows;
    for (int64_t step = 0; step < steps * in_sample;) {
      const int64_t most = in_sample - step % in_sample;  // a stretch is of one sample
      stretches.push_back({{pick(random, 0, 99), step}, pick(random, 1, most), static_cast<int64_t>(random() % 2)});
      for (int64_t k = 0; k < stretches.back().count; ++k) rows.push_back(stretches.back().row(k));
      step += stretches.back().count;
    }
    std::vector<StretchTarget> got;
    std::vector<RowTarget> expected;
    owned.ring.find_targets(std::span<const RowStretch>(stretches), 0, in_sample, 2, 0, got);
    owned.ring.find_targets(std::span<const Placement>(rows), 0, in_sample, 2, 0, expected);
    size_t at = 0;
    for (const StretchTarget& one : got) {
      for (int64_t k = 0; k < one.count; ++k, ++at) {
        CHECK_EQ(one.row + k * one.row_step, expected[at].row);
        CHECK(one.dest + 2 * k == expected[at].dest);
      }
    }
    CHECK_EQ(at, expected.size());
    const auto half = std::span<const RowStretch>(stretches).first(stretches.size() - 1);
    owned.ring.finish(half, in_sample, [](int64_t) {});
    CHECK(!owned.ring.is_complete(owned.ring.num_batches() - 1));
    owned.ring.finish(std::span<const RowStretch>(stretches).last(1), in_sample, [](int64_t) {});
    for (int64_t b = 0; b < owned.ring.num_batches(); ++b) CHECK(owned.ring.is_complete(b));
  }
}

TEST(every_step_is_claimed_once_in_each_turn_of_the_ring) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 500; ++i) {
    const int64_t batch_size = pick(random, 1, 7), size = pick(random, 1, 5), period = pick(random, 1, 12);
    const int64_t steps = pick(random, 1, 4 * batch_size * size);
    OwnedRing owned(steps, batch_size, size, period, 1, 1);
    // In the order of lanes as far as batches are open, then the window of open batches moves on by all of them.
    for (int64_t begin = 0; begin < steps; begin += batch_size * size) {
      const int64_t end = std::min(steps, begin + batch_size * size);
      std::vector<std::vector<Placement>> lanes;
      for (int64_t lane = 0; lane < period; ++lane) {
        const int64_t first = begin + (lane - begin % period + period) % period;
        if (first < end) lanes.push_back(lane_of(first, period, end));
      }
      std::shuffle(lanes.begin(), lanes.end(), random);
      for (const auto& rows : lanes) owned.ring.claim(rows);
      for (int64_t k = 0; k < 3; ++k) {
        const int64_t again = pick(random, begin, end - 1);
        CHECK_THROWS(kConfig, "plan: step " + std::to_string(again) + " is served twice",
                     owned.ring.claim(std::vector<Placement>{{0, again}}));
      }
    }
  }
}

TEST(the_first_step_that_nobody_claimed_is_named) {
  OwnedRing owned(40, 10, 2, 3, 1, 1);
  std::vector<Placement> rows;
  for (int64_t step = 10; step < 17; ++step) rows.push_back({0, step});
  owned.ring.claim(rows);
  CHECK_EQ(owned.ring.first_unclaimed(0), int64_t{0});
  CHECK_EQ(owned.ring.first_unclaimed(1), int64_t{17});
  CHECK_EQ(owned.ring.first_unclaimed(3), int64_t{30});  // the slot was claimed in an earlier turn alone
}

}  // namespace zarrfeed::testing::batch_ring_test
