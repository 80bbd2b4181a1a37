#include "plan/weighted_counts.h"

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "plan/row_order.h"

namespace zarrfeed {
namespace {

// Different purposes must never share a key, here and in row_order.cc.
constexpr uint64_t kRowsOfPool = 0x706f6f6c;
constexpr uint64_t kPoolsOfEpoch = 0x706f6f6c73;
constexpr uint64_t kPhaseOfEpoch = 0x7068617365;
/// Rows of a pool, and samples that are expected of it, if it is of several blocks.
constexpr int64_t kLeastRows = 64;
constexpr int64_t kLeastSamples = 2;
constexpr unsigned kMostBits = 60;
constexpr int64_t kMostUnits = int64_t{1} << 62;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorKind::kConfig, "weights: " + what);
}

/// Some rows, side by side.
struct RowRun {
  int64_t begin;
  int64_t end;
};

/// Pools of rows: pool i has the runs [begin[i], begin[i + 1]).
struct Pools {
  std::vector<RowRun> runs;
  std::vector<size_t> begin{0};

  [[nodiscard]] size_t size() const { return begin.size() - 1; }
  void add(std::span<const RowRun> of) {
    runs.insert(runs.end(), of.begin(), of.end());
    begin.push_back(runs.size());
  }
};

void check(const WeightedRows& of) {
  int64_t left = kMostUnits;
  for (const int64_t units : of.expected) {
    if (units < 0 || units > left) refuse("units are negative, or too many");
    left -= units;
  }
  int64_t rest = std::ssize(of.expected);
  for (const int64_t rows : of.rows) {
    if (rows < 0 || rows > rest) refuse("blocks have other rows");
    rest -= rows;
  }
  if (rest != 0) refuse("blocks have other rows");
}

Pools find_pools(const WeightedRows& of) {
  Pools pools;
  std::vector<RowRun> open;  // the small blocks that have no pool yet
  int64_t rows = 0;
  int64_t units = 0;
  RowRun run{0, 0};
  for (const int64_t of_block : of.rows) {
    run = {run.end, run.end + of_block};
    if (of_block >= kLeastRows) {
      pools.add({&run, 1});
      continue;
    }
    if (!open.empty() && open.back().end == run.begin) {
      open.back().end = run.end;
    } else {
      open.push_back(run);
    }
    const auto expected = of.expected.subspan(static_cast<size_t>(run.begin), static_cast<size_t>(of_block));
    rows += of_block;
    units = std::accumulate(expected.begin(), expected.end(), units);
    if (rows < kLeastRows || units < kLeastSamples << of.bits) continue;
    pools.add(open);
    open.clear();
    rows = units = 0;
  }
  if (!open.empty()) pools.add(open);
  return pools;
}

}  // namespace

void draw_counts(const WeightedRows& of, uint64_t seed, uint64_t epoch, std::span<int64_t> counts) {
  if (of.bits > kMostBits || counts.size() != of.expected.size()) refuse("there are other rows");
  check(of);
  const Pools pools = find_pools(of);
  const uint64_t of_phase[] = {kPhaseOfEpoch, seed, epoch};
  const uint64_t of_pools[] = {kPoolsOfEpoch, seed, epoch};
  int64_t end = static_cast<int64_t>(KeyedRandom(of_phase).next() & ((uint64_t{1} << of.bits) - 1));
  std::vector<int64_t> order(pools.size());
  random_permutation(KeyedRandom(of_pools), order);
  std::vector<size_t> row;
  std::vector<int64_t> permuted;
  for (const int64_t number : order) {
    const auto pool = static_cast<size_t>(number);
    row.clear();
    for (size_t run = pools.begin[pool]; run < pools.begin[pool + 1]; ++run) {
      for (int64_t i = pools.runs[run].begin; i < pools.runs[run].end; ++i) row.push_back(static_cast<size_t>(i));
    }
    permuted.resize(row.size());
    const uint64_t of_rows[] = {kRowsOfPool, seed, epoch, static_cast<uint64_t>(pool)};
    random_permutation(KeyedRandom(of_rows), permuted);
    for (const int64_t at : permuted) {
      const size_t laid = row[static_cast<size_t>(at)];
      const int64_t begin = end;
      end += of.expected[laid];
      counts[laid] = (end >> of.bits) - (begin >> of.bits);
    }
  }
}

}  // namespace zarrfeed
