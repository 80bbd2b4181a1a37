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

/// One position of the line.
struct Position {
  int64_t block;
  int64_t within;  ///< position in the permuted block
};

using Lane = std::vector<Position>;

std::vector<Lane> cut_lanes(const LineSpec& line) {
  std::vector<Lane> lanes(static_cast<size_t>(line.lanes));
  size_t lane = 0;
  const auto length = [&line](size_t of) {
    return line.length() / line.lanes + (static_cast<int64_t>(of) < line.length() % line.lanes ? 1 : 0);
  };
  for (const int64_t block : line.block_order) {
    const int64_t rows = std::ssize(line.samples_of(block));
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
int64_t step_of(const LineSpec& line, int64_t g) {
  if (g < line.first || (g - line.first) % line.stride != 0) return -1;
  const int64_t step = (g - line.first) / line.stride;
  return step < line.num_steps() ? step : -1;
}

/// The samples of a lane in the order in which it deals them.
std::vector<int64_t> samples_of_lane(const LineSpec& line, const Lane& lane, uint64_t number) {
  std::vector<int64_t> samples;
  for (const Position& p : lane) {
    const std::vector<int64_t> of_block = line.samples_of(p.block);
    int64_t row = p.within;
    if (line.shuffle) {
      ReferenceRandom random({line.seed, line.epoch, 1, static_cast<uint64_t>(p.block)});
      row = random.permutation(of_block.size())[static_cast<size_t>(p.within)];
    }
    samples.push_back(of_block[static_cast<size_t>(row)]);
  }
  const std::vector<size_t> groups = cut_groups(lane, line.mix);
  for (size_t g = 0; line.shuffle && g + 1 < groups.size(); ++g) {
    // A group of one piece is a permuted block already, and stays as it is.
    const size_t rows = groups[g + 1] - groups[g];
    if (lane[groups[g]].block == lane[groups[g + 1] - 1].block) continue;
    ReferenceRandom random({line.seed, line.epoch, 2, number, g});
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

Group make_group(const LineSpec& line, const Lane& lane, int64_t number, size_t begin, size_t end) {
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
    const int64_t step = step_of(line, number + line.lanes * static_cast<int64_t>(j));
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

int64_t LineSpec::num_steps() const {
  const int64_t available = first >= length() ? 0 : (length() - first - 1) / stride + 1;
  return steps < 0 ? available : std::min(steps, available);
}

std::vector<int64_t> LineSpec::samples_of(int64_t block) const {
  std::vector<int64_t> samples;
  const int64_t end = std::min(num_samples, (block + 1) * block_rows);
  for (int64_t sample = block * block_rows; sample < end; ++sample) {
    if (selected.empty() || std::find(selected.begin(), selected.end(), sample) != selected.end()) {
      samples.push_back(sample);
    }
  }
  return samples;
}

void LineSpec::select(std::mt19937_64& random, int64_t low, int64_t high) {
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

LineSpec random_line(std::mt19937_64& random, int64_t max_samples) {
  LineSpec line;
  line.seed = random();
  line.epoch = random() % 5;
  line.shuffle = random() % 4 != 0;
  line.num_samples = pick(random, 1, max_samples);
  line.block_rows = pick(random, 1, std::min<int64_t>(line.num_samples + 2, 20));
  line.lanes = pick(random, 1, std::min<int64_t>(line.num_samples, 12));
  line.mix = random() % 2 == 0 ? 1 : pick(random, 2, 4);
  line.block_order.resize(static_cast<size_t>(line.num_blocks()));
  std::iota(line.block_order.begin(), line.block_order.end(), 0);
  if (line.shuffle) std::shuffle(line.block_order.begin(), line.block_order.end(), random);
  line.stride = random() % 2 == 0 ? 1 : pick(random, 2, 9);
  line.first = pick(random, 0, line.stride - 1);
  if (random() % 4 == 0) line.first += line.stride * pick(random, 0, line.num_samples / line.stride);  // resumed
  if (random() % 4 == 0) line.steps = pick(random, 0, line.num_steps());
  return line;
}

std::unique_ptr<OwnedPlan> build_plan(const LineSpec& line) {
  const std::vector<Lane> lanes = cut_lanes(line);
  std::vector<Group> groups;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const std::vector<size_t> begin = cut_groups(lanes[lane], line.mix);
    for (size_t g = 0; g + 1 < begin.size(); ++g) {
      Group group = make_group(line, lanes[lane], static_cast<int64_t>(lane), begin[g], begin[g + 1]);
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
      const std::vector<int64_t> samples = line.samples_of(block);
      const auto found = std::lower_bound(line.selected.begin(), line.selected.end(), samples.front());
      const bool listed = !line.selected.empty() && line.sample_step == 0;
      plan->segment_block.push_back(block);
      plan->segment_first.push_back(listed ? found - line.selected.begin() : samples.front());
      plan->segment_rows.push_back(std::ssize(samples));
      plan->segment_start.push_back(group.segment_starts[s].within);
      plan->segment_length.push_back(group.segment_lengths[s]);
    }
    plan->group_begin.push_back(std::ssize(plan->segment_block));
  }
  EpochPlan& p = plan->plan;
  p.seed = line.seed;
  p.epoch = line.epoch;
  p.shuffle = line.shuffle;
  p.lanes = line.lanes;
  p.length = line.length();
  p.num_samples = line.num_samples;
  p.sample_step = std::max<int64_t>(1, line.sample_step);
  if (line.sample_step == 0 && !line.selected.empty()) plan->selected = listed_table(line.selected);
  p.first = line.first;
  p.stride = line.stride;
  p.count = line.num_steps();
  p.steps = line.num_steps();
  plan->bind();
  return plan;
}

std::vector<int64_t> reference_order(const LineSpec& line) {
  const std::vector<Lane> lanes = cut_lanes(line);
  std::vector<std::vector<int64_t>> samples;
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    samples.push_back(samples_of_lane(line, lanes[lane], lane));
  }
  std::vector<int64_t> order;
  for (int64_t step = 0; step < line.num_steps(); ++step) {
    const int64_t g = line.first + line.stride * step;
    order.push_back(samples[static_cast<size_t>(g % line.lanes)][static_cast<size_t>(g / line.lanes)]);
  }
  return order;
}

std::string describe(const LineSpec& line) {
  std::string text;
  const std::pair<const char*, int64_t> parts[] = {{"shuffle", line.shuffle ? 1 : 0},
                                                   {"num_samples", line.num_samples},
                                                   {"block_rows", line.block_rows},
                                                   {"selected", std::ssize(line.selected)},
                                                   {"sample_step", line.sample_step},
                                                   {"lanes", line.lanes},
                                                   {"mix", line.mix},
                                                   {"first", line.first},
                                                   {"stride", line.stride},
                                                   {"steps", line.num_steps()},
                                                   {"epoch", static_cast<int64_t>(line.epoch)}};
  for (const auto& [name, value] : parts) text += std::string(name) + " = " + std::to_string(value) + ", ";
  return text + "seed = " + std::to_string(line.seed);
}

}  // namespace zarrfeed::testing
