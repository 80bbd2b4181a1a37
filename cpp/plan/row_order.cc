#include "plan/row_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "base/division.h"
#include "base/error.h"

namespace zarrfeed {
namespace {

// Different purposes must never share a key.
constexpr uint64_t kRowsOfBlock = 1;
constexpr uint64_t kRowsOfGroup = 2;
constexpr uint64_t kLeadOfSample = 3;
constexpr uint64_t kOrientationOfPatch = 0x6f7269656e74;

/// Sets `out` to the order of the rows of a block, as positions -> row.
void permute_block(uint64_t seed, uint64_t epoch, int64_t block, int64_t rows, std::vector<int64_t>& out) {
  out.resize(static_cast<size_t>(rows));
  const uint64_t key[] = {seed, epoch, kRowsOfBlock, static_cast<uint64_t>(block)};
  random_permutation(KeyedRandom(key), out);
}

/// The regular step at which the consumer reads position g of the epoch order; -1 if there is none.
int64_t regular_step(const EpochPlan& plan, int64_t g) {
  int64_t ahead = g - plan.first;
  if (g >= plan.length || ahead < 0) return -1;
  int64_t before = 0;
  if (plan.run > 0) {
    before = ahead / plan.period * plan.run;
    ahead %= plan.period;
    if (ahead >= plan.run * plan.stride) return -1;
  }
  if (ahead % plan.stride != 0) return -1;
  const int64_t step = before + ahead / plan.stride;
  return step < plan.count ? plan.begin + step : -1;
}

/// Calls `take` with each step at which the consumer reads position g of the epoch order; g >= length is in a later
/// turn.
template <typename Function>
void for_each_step(const EpochPlan& plan, int64_t g, Function&& take) {
  if (const int64_t step = regular_step(plan, g); step >= 0) take(step);
  if (plan.extra_position.empty() || g < plan.extra_position.front() || g > plan.extra_position.back()) return;
  const auto found = std::lower_bound(plan.extra_position.begin(), plan.extra_position.end(), g);
  for (auto i = static_cast<size_t>(found - plan.extra_position.begin());
       i < plan.extra_position.size() && plan.extra_position[i] == g; ++i) {
    take(plan.extra_step[i]);
  }
}

/// The position in the epoch order of a position of a source's pass; -1 if the epoch does not have it.
int64_t position_in_mixture(const EpochPlan& plan, size_t source, int64_t pass, int64_t position) {
  const int64_t step = plan.mixture->step_of(source, pass * plan.source_length[source] + position);
  if (step < plan.mixture_begin || step - plan.mixture_begin >= plan.length) return -1;
  return step - plan.mixture_begin;
}

/// Steps that are as far apart as positions of a lane are: that of the lane's position `at` is `first + delta * at`, for
/// `at` in [begin, end). The consumer reads no other position of the group.
struct EvenSteps {
  int64_t first = 0;
  int64_t delta = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

/// The steps of `rows` positions of the epoch order, `lanes` apart, from g on. None if they have to be looked up one by
/// one.
std::optional<EvenSteps> find_even_steps(const EpochPlan& plan, int64_t g, int64_t lanes, int64_t rows) {
  if (plan.mixture != nullptr || plan.run > 0 || !plan.extra_position.empty() || lanes % plan.stride != 0) return {};
  const int64_t ahead = g - plan.first;
  if (ahead % plan.stride != 0) return EvenSteps{};
  EvenSteps steps{plan.begin + ahead / plan.stride, lanes / plan.stride, 0, rows};
  const auto first_from = [&](int64_t distance) {  // the first position of the lane so far behind g, or farther
    return std::clamp<int64_t>(ceil_div(distance, lanes), 0, rows);
  };
  if (ahead < 0) steps.begin = first_from(-ahead);
  // From here on, the position is in a later turn or behind what the consumer reads.
  const int64_t end = std::min(plan.length - g, plan.count * plan.stride - ahead);
  steps.end = end <= 0 ? 0 : first_from(end);
  return steps;
}

/// The key by which the rows of a group are permuted, and the dealing of its lane.
struct GroupOrder {
  uint64_t seed;
  uint64_t epoch;
  int64_t lanes;
};

GroupOrder order_of(const EpochPlan& plan, size_t group) {
  if (plan.mixture == nullptr) return {plan.seed, plan.epoch, plan.lanes};
  const auto source = static_cast<size_t>(plan.group_source[group]);
  return {plan.source_seed[source], static_cast<uint64_t>(plan.group_pass[group]), plan.source_lanes[source]};
}

/// Throws unless segment s lies in its block, and the block in the array (or in the list of samples).
void check_segment(const EpochPlan& plan, size_t s) {
  const int64_t start = plan.segment_start[s];
  const int64_t length = plan.segment_length[s];
  const int64_t first = plan.segment_first[s];
  const int64_t rows = plan.segment_rows[s];
  if (start < 0 || length < 1 || rows < length || start > rows - length) {
    throw Error(ErrorKind::kConfig, "plan: segment of " + std::to_string(length) + " rows from row " +
                                        std::to_string(start) + " on is outside of block " +
                                        std::to_string(plan.segment_block[s]));
  }
  const bool listed = plan.selected != nullptr;
  const int64_t end = listed ? plan.selected->length() : plan.num_samples;
  const int64_t step = listed ? 1 : plan.sample_step;
  if (first < 0 || first >= end || step < 1 || rows - 1 > (end - 1 - first) / step) {
    throw Error(ErrorKind::kConfig,
                "plan: block " + std::to_string(plan.segment_block[s]) + " is outside of the array");
  }
}

/// Throws unless a sample of `selected` is in the array.
int64_t check_sample(const EpochPlan& plan, int64_t sample) {
  if (sample < 0 || sample >= plan.num_samples) {
    throw Error(ErrorKind::kConfig, "plan: sample " + std::to_string(sample) + " is outside of the array");
  }
  return sample;
}

/// Sets the placements of a group, whose begins of segments are there, from which sample of which segment stands at each
/// position: those of each segment in the order of their steps.
void group_by_segment(const EvenSteps& even, std::span<const SegmentRow> by_position, GroupPlacements& out) {
  std::ranges::fill(out.begin, 0);
  for (int64_t at = even.begin; at < even.end; ++at) ++out.begin[by_position[static_cast<size_t>(at)].segment + 1];
  std::partial_sum(out.begin.begin(), out.begin.end(), out.begin.begin());
  out.rows.resize(out.begin.back());
  std::vector<size_t> next(out.begin.begin(), out.begin.end() - 1);
  for (int64_t at = even.begin; at < even.end; ++at) {
    const SegmentRow& row = by_position[static_cast<size_t>(at)];
    out.rows[next[row.segment]++] = {row.sample, even.first + even.delta * at};
  }
}

}  // namespace

KeyedRandom::KeyedRandom(std::span<const uint64_t> words) {
  for (const uint64_t word : words) state_ = mix((state_ + kGamma) ^ word);
}

uint64_t KeyedRandom::mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

SampleRange find_samples(const EpochPlan& plan, size_t segment) {
  const int64_t first = plan.segment_first[segment];
  const int64_t rows = plan.segment_rows[segment];
  if (plan.selected == nullptr) return {first, first + (rows - 1) * plan.sample_step};
  const SampleRange range = plan.selected->range(first, rows);
  return {check_sample(plan, range.first), check_sample(plan, range.last)};
}

void random_permutation(KeyedRandom random, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t j = random.below(i + 1);
    out[i] = out[j];
    out[j] = static_cast<int64_t>(i);
  }
}

void expand_group(const EpochPlan& plan, size_t group, ShuffleScratch& scratch, GroupPlacements& out) {
  const auto begin = static_cast<size_t>(plan.group_begin[group]);
  const auto end = static_cast<size_t>(plan.group_begin[group + 1]);
  const int64_t lane = plan.group_lane[group];
  const GroupOrder order = order_of(plan, group);
  out.rows.clear();
  out.begin.assign(1, 0);

  for (size_t s = begin; s < end; ++s) check_segment(plan, s);
  const int64_t group_rows =
      std::accumulate(plan.segment_length.begin() + static_cast<std::ptrdiff_t>(begin),
                      plan.segment_length.begin() + static_cast<std::ptrdiff_t>(end), int64_t{0});

  // With mix > 1, position i of the group holds row p[i] of the concatenated segments; what is needed is the inverse:
  // where does each row of a segment stand? It is drawn directly, since the inverse of a random permutation is one.
  const bool mixed = plan.shuffle && end - begin > 1;
  if (mixed) {
    scratch.group_permutation.resize(static_cast<size_t>(group_rows));
    const uint64_t key[] = {order.seed, order.epoch, kRowsOfGroup, static_cast<uint64_t>(lane),
                            static_cast<uint64_t>(plan.group_number[group])};
    random_permutation(KeyedRandom(key), scratch.group_permutation);
  }

  const auto check_step = [&](int64_t step) {
    if (step >= plan.first_step[group] && step <= plan.last_step[group]) return true;
    if (plan.mixture != nullptr) return false;  // batches beyond would not be open
    throw Error(ErrorKind::kConfig, "plan: group " + std::to_string(group) + " serves step " + std::to_string(step) +
                                        ", outside of what it declares");
  };
  const int64_t turn_begin = plan.group_turn[group] * plan.length;
  const std::optional<EvenSteps> even =
      find_even_steps(plan, lane + order.lanes * plan.group_offset[group] + turn_begin, order.lanes, group_rows);
  if (even && even->begin < even->end) {
    check_step(even->first + even->delta * even->begin);
    check_step(even->first + even->delta * (even->end - 1));
  }
  if (even && mixed) scratch.by_position.resize(static_cast<size_t>(group_rows));
  int64_t in_group = 0;  // rows of this group before the current segment
  for (size_t s = begin; s < end; ++s) {
    const int64_t start = plan.segment_start[s];
    const int64_t length = plan.segment_length[s];
    if (plan.shuffle) {
      permute_block(order.seed, order.epoch, plan.segment_block[s], plan.segment_rows[s], scratch.block_permutation);
    }
    if (plan.selected != nullptr) {
      scratch.block_samples.resize(static_cast<size_t>(plan.segment_rows[s]));
      plan.selected->list(plan.segment_first[s], scratch.block_samples);
    }
    const auto sample_at = [&](int64_t i) {
      const int64_t row = plan.shuffle ? scratch.block_permutation[static_cast<size_t>(start + i)] : start + i;
      if (plan.selected == nullptr) return plan.segment_first[s] + row * plan.sample_step;
      return check_sample(plan, scratch.block_samples[static_cast<size_t>(row)]);
    };
    const size_t first_placement = out.rows.size();
    if (even && mixed) {
      for (int64_t i = 0; i < length; ++i) {
        const int64_t at = scratch.group_permutation[static_cast<size_t>(in_group + i)];
        scratch.by_position[static_cast<size_t>(at)] = {sample_at(i), s - begin};
      }
    } else if (even) {
      const int64_t last = std::min(length, even->end - in_group);
      out.rows.reserve(first_placement + static_cast<size_t>(length));
      for (int64_t i = std::max<int64_t>(0, even->begin - in_group); i < last; ++i) {
        out.rows.push_back({sample_at(i), even->first + even->delta * (in_group + i)});
      }
    } else {
      for (int64_t i = 0; i < length; ++i) {
        const int64_t at = mixed ? scratch.group_permutation[static_cast<size_t>(in_group + i)] : in_group + i;
        int64_t g = lane + order.lanes * (plan.group_offset[group] + at);
        if (plan.mixture != nullptr) {
          g = position_in_mixture(plan, static_cast<size_t>(plan.group_source[group]), plan.group_pass[group], g);
          if (g < 0) continue;
        }
        for_each_step(plan, g + turn_begin, [&](int64_t step) {
          if (check_step(step)) out.rows.push_back({sample_at(i), step});
        });
      }
    }
    if ((mixed && !even) || plan.mixture != nullptr || !plan.extra_position.empty()) {
      std::sort(out.rows.begin() + static_cast<std::ptrdiff_t>(first_placement), out.rows.end(),
                [](const Placement& a, const Placement& b) { return a.step < b.step; });
    }
    out.begin.push_back(out.rows.size());
    in_group += length;
  }
  if (even && mixed) group_by_segment(*even, scratch.by_position, out);
}

int64_t draw_lead(const EpochPlan& plan, int64_t sample, int64_t low, int64_t high) {
  const uint64_t key[] = {plan.seed, plan.epoch, kLeadOfSample, static_cast<uint64_t>(sample)};
  return low + static_cast<int64_t>(KeyedRandom(key).below(static_cast<uint64_t>(high - low) + 1));
}

const Orientation* draw_orientation(const EpochPlan& plan, int64_t sample) {
  const std::vector<Orientation>& of = plan.patches->orientations;
  if (of.empty()) return nullptr;
  const uint64_t key[] = {kOrientationOfPatch, plan.seed, plan.epoch,
                          static_cast<uint64_t>(plan.patches->number(sample))};
  const Orientation& drawn = of[KeyedRandom(key).below(of.size())];
  return drawn == Orientation{} ? nullptr : &drawn;
}

StepRange find_steps(const EpochPlan& plan, size_t source, int64_t pass, int64_t lane, int64_t offset, int64_t rows) {
  // In each column, steps ascend with positions. So what counts is the first and the last row of each column.
  const Mixture& mixture = *plan.mixture;
  const int64_t columns = mixture.columns();
  const int64_t lanes = plan.source_lanes[source];
  const int64_t begin = pass * plan.source_length[source];
  // Rows this far apart are of the same column; each of the first ones is of another column, if steps are not in units.
  const int64_t cycle = columns / std::gcd(columns, lanes);
  StepRange range{std::numeric_limits<int64_t>::max(), -1};
  const auto step_at = [&](int64_t row) {
    const int64_t g = position_in_mixture(plan, source, pass, lane + lanes * (offset + row));
    return g < 0 ? -1 : regular_step(plan, g);
  };
  // A column whose steps the consumer never reads need not be looked at row by row.
  const bool in_columns = mixture.unit() == 1;
  const int64_t common = std::gcd(std::gcd(plan.stride, plan.run > 0 ? plan.period : 0), columns);
  const auto never_read = [&](int64_t row) {
    const int64_t position = begin + lane + lanes * (offset + row);
    return (position - plan.mixture_begin - plan.first) % common != 0;
  };
  for (int64_t of_cycle = 0; of_cycle < std::min(in_columns ? cycle : 1, rows); ++of_cycle) {
    if (in_columns && never_read(of_cycle)) continue;
    const int64_t apart = in_columns ? cycle : 1;
    int64_t row = of_cycle;
    int64_t step = -1;
    for (; row < rows && (step = step_at(row)) < 0; row += apart) continue;
    if (step < 0) continue;
    range.first = std::min(range.first, step);
    row = of_cycle + (rows - 1 - of_cycle) / apart * apart;
    for (; (step = step_at(row)) < 0; row -= apart) continue;
    range.last = std::max(range.last, step);
  }
  return range.last < 0 ? StepRange{} : range;
}

void list_order(const EpochPlan& plan, std::span<int64_t> out) {
  ShuffleScratch scratch;
  GroupPlacements placements;
  for (size_t group = 0; group < plan.num_groups(); ++group) {
    expand_group(plan, group, scratch, placements);
    for (const Placement& p : placements.rows) out[static_cast<size_t>(p.step)] = p.sample;
  }
}

void list_segments(const EpochPlan& plan, std::span<int64_t> out) {
  ShuffleScratch scratch;
  GroupPlacements placements;
  for (size_t group = 0; group < plan.num_groups(); ++group) {
    expand_group(plan, group, scratch, placements);
    for (size_t s = 0; s + 1 < placements.begin.size(); ++s) {
      for (size_t i = placements.begin[s]; i < placements.begin[s + 1]; ++i) {
        out[static_cast<size_t>(placements.rows[i].step)] = plan.group_begin[group] + static_cast<int64_t>(s);
      }
    }
  }
}

}  // namespace zarrfeed
