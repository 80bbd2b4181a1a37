#include "tests/support/plans.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace zarrfeed::testing {
namespace {

/// SplitMix64 as its authors print it, and the key of a purpose as cpp/plan/row_order.h describes it.
class ReferenceRandom {
 public:
  explicit ReferenceRandom(const std::vector<uint64_t>& words) {
    for (const uint64_t word : words) state_ = finish((state_ + 0x9e3779b97f4a7c15) ^ word);
  }
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15;
    return finish(state_);
  }
  /// Position of each of `n` things after shuffling; Fisher and Yates, inside out.
  std::vector<int64_t> permutation(size_t n) {
    std::vector<int64_t> out;
    for (size_t i = 0; i < n; ++i) {
      const auto j = static_cast<size_t>((static_cast<unsigned __int128>(next()) * (i + 1)) >> 64);
      out.push_back(static_cast<int64_t>(i));
      std::swap(out[i], out[j]);
    }
    return out;
  }

 private:
  static uint64_t finish(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t state_ = 0;
};

/// One position of the epoch order.
struct Position {
  int64_t block;
  int64_t within;  ///< position in the permuted block
};

using Lane = std::vector<Position>;

std::vector<Lane> cut_lanes(const PlanSpec& spec) {
  std::vector<Lane> lanes(static_cast<size_t>(spec.lanes));
  size_t lane = 0;
  const auto length = [&spec](size_t of) {
    return spec.length() / spec.lanes + (static_cast<int64_t>(of) < spec.length() % spec.lanes ? 1 : 0);
  };
  for (const int64_t block : spec.block_order) {
    const int64_t rows = std::ssize(spec.samples_of(block));
    for (int64_t within = 0; within < rows; ++within) {
      while (std::ssize(lanes[lane]) == length(lane)) ++lane;
      lanes[lane].push_back({block, within});
    }
  }
  return lanes;
}

/// First positions of the groups of a lane, with the lane's length behind them.
std::vector<size_t> cut_groups(const Lane& lane, int64_t mix) {
  std::vector<size_t> begin;
  int64_t pieces = 0;
  for (size_t j = 0; j < lane.size(); ++j) {
    if (j > 0 && lane[j].block == lane[j - 1].block) continue;
    if (pieces++ % mix == 0) begin.push_back(j);
  }
  begin.push_back(lane.size());
  return begin;
}

/// The step at which the consumer takes global position g, or -1.
int64_t step_of(const PlanSpec& spec, int64_t g) {
  if (g < spec.first || (g - spec.first) % spec.stride != 0) return -1;
  const int64_t step = (g - spec.first) / spec.stride;
  return step < spec.num_steps() ? step : -1;
}

/// The samples of a lane in the order in which it deals them.
std::vector<int64_t> samples_of_lane(const PlanSpec& spec, const Lane& lane, uint64_t number) {
  std::vector<int64_t> samples;
  for (const Position& p : lane) {
    const std::vector<int64_t> of_block = spec.samples_of(p.block);
    int64_t row = p.within;
    if (spec.shuffle) {
      ReferenceRandom random({spec.seed, spec.epoch, 1, static_cast<uint64_t>(p.block)});
      row = random.permutation(of_block.size())[static_cast<size_t>(p.within)];
    }
    samples.push_back(of_block[static_cast<size_t>(row)]);
  }
  const std::vector<size_t> groups = cut_groups(lane, spec.mix);
  for (size_t g = 0; spec.shuffle && g + 1 < groups.size(); ++g) {
    // A group of one piece is a permuted block already, and stays as it is.
    const size_t rows = groups[g + 1] - groups[g];
    if (lane[groups[g]].block == lane[groups[g + 1] - 1].block) continue;
    ReferenceRandom random({spec.seed, spec.epoch, 2, number, g});
    const std::vector<int64_t> target = random.permutation(rows);
    std::vector<int64_t> mixed(rows);
    for (size_t i = 0; i < rows; ++i) mixed[static_cast<size_t>(target[i])] = samples[groups[g] + i];
    std::copy(mixed.begin(), mixed.end(), samples.begin() + static_cast<std::ptrdiff_t>(groups[g]));
  }
  return samples;
}

/// One group with its segments, before sorting.
struct Group {
  int64_t lane = 0;
  int64_t offset = 0;
  int64_t number = 0;
  int64_t first_step = -1;
  int64_t last_step = -1;
  std::vector<Position> segment_starts;
  std::vector<int64_t> segment_lengths;
};

Group make_group(const PlanSpec& spec, const Lane& lane, int64_t number, size_t begin, size_t end) {
  Group group;
  group.lane = number;
  group.offset = static_cast<int64_t>(begin);
  for (size_t j = begin; j < end; ++j) {
    if (j > begin && lane[j].block == lane[j - 1].block) {
      ++group.segment_lengths.back();
    } else {
      group.segment_starts.push_back(lane[j]);
      group.segment_lengths.push_back(1);
    }
    const int64_t step = step_of(spec, number + spec.lanes * static_cast<int64_t>(j));
    if (step >= 0 && group.first_step < 0) group.first_step = step;
    if (step >= 0) group.last_step = step;
  }
  return group;
}

}  // namespace

std::shared_ptr<const SampleTable> listed_table(std::vector<int64_t> samples) {
  const auto owner = std::make_shared<const std::vector<int64_t>>(std::move(samples));
  return SampleTable::of_list(*owner, owner);
}

int64_t PlanSpec::num_steps() const {
  const int64_t available = first >= length() ? 0 : (length() - first - 1) / stride + 1;
  return steps < 0 ? available : std::min(steps, available);
}

std::vector<int64_t> PlanSpec::samples_of(int64_t block) const {
  std::vector<int64_t> samples;
  const int64_t end = std::min(num_samples, (block + 1) * block_rows);
  for (int64_t sample = block * block_rows; sample < end; ++sample) {
    if (selected.empty() || std::find(selected.begin(), selected.end(), sample) != selected.end()) {
      samples.push_back(sample);
    }
  }
  return samples;
}

void PlanSpec::select(std::mt19937_64& random, int64_t low, int64_t high) {
  if (high < 0) high = num_samples;
  sample_step = random() % 2 == 0 ? 0 : pick(random, 1, 2 * block_rows);
  const int64_t begin = pick(random, low, high - 1);
  const uint64_t one_of = random() % 4 + 1;
  for (int64_t sample = begin; sample < high; sample += std::max<int64_t>(1, sample_step)) {
    if (sample_step > 0 || sample == begin || random() % one_of == 0) selected.push_back(sample);
  }
  block_order.clear();
  for (int64_t block = 0; block < num_blocks(); ++block) {
    if (!samples_of(block).empty()) block_order.push_back(block);
  }
  if (shuffle) std::shuffle(block_order.begin(), block_order.end(), random);
  lanes = std::min(lanes, length());
}

int64_t pick(std::mt19937_64& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

PlanSpec random_plan_spec(std::mt19937_64& random, int64_t max_samples) {
  PlanSpec spec;
  spec.seed = random();
  spec.epoch = random() % 5;
  spec.shuffle = random() % 4 != 0;
  spec.num_samples = pick(random, 1, max_samples);
  spec.block_rows = pick(random, 1, std::min<int64_t>(spec.num_samples + 2, 20));
  spec.lanes = pick(random, 1, std::min<int64_t>(spec.num_samples, 12));
  spec.mix = random() % 2 == 0 ? 1 : pick(random, 2, 4);
  spec.block_order.resize(static_cast<size_t>(spec.num_blocks()));
  std::iota(spec.block_order.begin(), spec.block_order.end(), 0);
  if (spec.shuffle) std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
  spec.stride = random() % 2 == 0 ? 1 : pick(random, 2, 9);
  spec.first = pick(random, 0, spec.stride - 1);
  if (random() % 4 == 0) spec.first += spec.stride * pick(random, 0, spec.num_samples / spec.stride);  // resumed
  if (random() % 4 == 0) spec.steps = pick(random, 0, spec.num_steps());
  return spec;
}

std::unique_ptr<OwnedPlan> build_plan(const PlanSpec& spec) {
  const std::vector<Lane> lanes = cut_lanes(spec);
  std::vector<Group> groups;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const std::vector<size_t> begin = cut_groups(lanes[lane], spec.mix);
    for (size_t g = 0; g + 1 < begin.size(); ++g) {
      Group group = make_group(spec, lanes[lane], static_cast<int64_t>(lane), begin[g], begin[g + 1]);
      group.number = static_cast<int64_t>(g);
      if (group.first_step >= 0) groups.push_back(std::move(group));
    }
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.first_step < b.first_step; });
  auto plan = std::make_unique<OwnedPlan>();
  plan->group_begin.push_back(0);
  for (const Group& group : groups) {
    plan->group_lane.push_back(group.lane);
    plan->group_offset.push_back(group.offset);
    plan->group_number.push_back(group.number);
    plan->group_turn.push_back(0);
    plan->first_step.push_back(group.first_step);
    plan->last_step.push_back(group.last_step);
    for (size_t s = 0; s < group.segment_starts.size(); ++s) {
      const int64_t block = group.segment_starts[s].block;
      const std::vector<int64_t> samples = spec.samples_of(block);
      const auto found = std::lower_bound(spec.selected.begin(), spec.selected.end(), samples.front());
      const bool listed = !spec.selected.empty() && spec.sample_step == 0;
      plan->segment_block.push_back(block);
      plan->segment_first.push_back(listed ? found - spec.selected.begin() : samples.front());
      plan->segment_rows.push_back(std::ssize(samples));
      plan->segment_start.push_back(group.segment_starts[s].within);
      plan->segment_length.push_back(group.segment_lengths[s]);
    }
    plan->group_begin.push_back(std::ssize(plan->segment_block));
  }
  EpochPlan& p = plan->plan;
  p.seed = spec.seed;
  p.epoch = spec.epoch;
  p.shuffle = spec.shuffle;
  p.lanes = spec.lanes;
  p.length = spec.length();
  p.num_samples = spec.num_samples;
  p.sample_step = std::max<int64_t>(1, spec.sample_step);
  if (spec.sample_step == 0 && !spec.selected.empty()) plan->selected = listed_table(spec.selected);
  p.first = spec.first;
  p.stride = spec.stride;
  p.count = spec.num_steps();
  p.steps = spec.num_steps();
  plan->bind();
  return plan;
}

std::vector<int64_t> reference_order(const PlanSpec& spec) {
  const std::vector<Lane> lanes = cut_lanes(spec);
  std::vector<std::vector<int64_t>> samples;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    samples.push_back(samples_of_lane(spec, lanes[lane], lane));
  }
  std::vector<int64_t> order;
  for (int64_t step = 0; step < spec.num_steps(); ++step) {
    const int64_t g = spec.first + spec.stride * step;
    order.push_back(samples[static_cast<size_t>(g % spec.lanes)][static_cast<size_t>(g / spec.lanes)]);
  }
  return order;
}

std::string describe(const PlanSpec& spec) {
  std::string text;
  const std::pair<const char*, int64_t> parts[] = {{"shuffle", spec.shuffle ? 1 : 0},
                                                   {"num_samples", spec.num_samples},
                                                   {"block_rows", spec.block_rows},
                                                   {"selected", std::ssize(spec.selected)},
                                                   {"sample_step", spec.sample_step},
                                                   {"lanes", spec.lanes},
                                                   {"mix", spec.mix},
                                                   {"first", spec.first},
                                                   {"stride", spec.stride},
                                                   {"steps", spec.num_steps()},
                                                   {"epoch", static_cast<int64_t>(spec.epoch)}};
  for (const auto& [name, value] : parts) text += std::string(name) + " = " + std::to_string(value) + ", ";
  return text + "seed = " + std::to_string(spec.seed);
}

}  // namespace zarrfeed::testing
