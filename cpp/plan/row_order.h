#pragma once
// The row order: which sample has which position in the epoch order, and at which step a consumer reads it. There is no
// other code for it.
//
// Pure functions of their arguments. docs/design/order.md, The epoch order, defines the order; in short:
//   row          number r of a block is the r-th of its samples that are read
//   epoch order  all blocks in permuted order, the rows of each block permuted by a key of (seed, epoch, block)
//   lane         one of L pieces of the epoch order; its position j is global position  lane + L * j
//   group        `mix` consecutive block pieces of one lane; for mix > 1 their rows are permuted together
//   step         the consumer that reads positions first, first + stride, ... reads g at step (g - first) / stride;
//                the few positions that are on no stride (where a run was resumed, or ends) are listed one by one
//   mixture      each source has orders of its own, one for each pass over it; position p of the endless sequence of
//   its
//                passes is the position of the mixture that mixture.h finds

#include <cstdint>
#include <span>
#include <vector>

#include "plan/mixture.h"
#include "plan/patch_table.h"
#include "plan/placement.h"
#include "plan/sample_table.h"

namespace zarrfeed {

/// Counter-based generator: value i is a hash of (key, i). SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
class KeyedRandom {
 public:
  /// The key is a hash of all words.
  explicit KeyedRandom(std::span<const uint64_t> words);
  uint64_t next() { return mix(state_ += kGamma); }
  /// Uniform on [0, bound), for bound < 2^32 with a bias below bound / 2^64.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15;
  static uint64_t mix(uint64_t z);
  uint64_t state_ = 0;
};

/// Fills `out` with a uniformly random permutation of [0, out.size()) (Fisher and Yates, inside out).
void random_permutation(KeyedRandom random, std::span<int64_t> out);

/// One epoch for one consumer. All arrays are borrowed.
struct EpochPlan {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  bool shuffle = false;
  int64_t lanes = 1;
  int64_t length = 0;       ///< positions of the epoch order
  int64_t num_samples = 0;  ///< samples in the array
  int64_t steps = 0;        ///< samples that this consumer delivers
  // At its steps [begin, begin + count), the consumer reads positions first, first + stride, ...
  int64_t first = 0;
  int64_t stride = 1;
  int64_t begin = 0;
  int64_t count = 0;
  // With run > 0 it reads so many of them, then goes on `period` positions behind the first of these, and so on.
  int64_t run = 0;
  int64_t period = 0;
  // At its other steps it reads these positions, in ascending order; g >= length is position g mod length in turn g /
  // length.
  std::span<const int64_t> extra_position;
  std::span<const int64_t> extra_step;

  // Groups, sorted by the first step that they serve; group i has the segments [group_begin[i], group_begin[i + 1]).
  std::span<const int64_t> group_begin;
  std::span<const int64_t> group_lane;
  std::span<const int64_t> group_offset;  ///< position in the lane of the group's first row
  std::span<const int64_t> group_number;  ///< number of the group in its lane: part of the key
  std::span<const int64_t> group_turn;    ///< the turn of the epoch order that the group serves
  std::span<const int64_t> first_step;    ///< first and last step that the group serves
  std::span<const int64_t> last_step;
  // In a mixture, several groups may have the same rows, and each serves those of its own steps.
  const Mixture* mixture = nullptr;       ///< null: there is one order, and the arrays below are empty
  int64_t mixture_begin = 0;              ///< the step of the mixture that is position 0
  std::span<const int64_t> group_source;  ///< the source that a group's rows are of
  std::span<const int64_t> group_pass;    ///< and which pass over it: part of the key, in place of `epoch`
  std::span<const uint64_t> source_seed;  ///< of each source: its key, its lanes, and its positions in one pass
  std::span<const int64_t> source_lanes;
  std::span<const int64_t> source_length;
  const SampleTable* selected = nullptr;  ///< samples that are read; null: those of every block are `sample_step` apart
  int64_t sample_step = 1;

  // Segments: a run of positions inside one block.
  std::span<const int64_t> segment_block;  ///< part of the key
  std::span<const int64_t>
      segment_first;  ///< row 0 of the block: its number in `selected`, or the sample if there is no `selected`
  std::span<const int64_t> segment_rows;   ///< rows of the block
  std::span<const int64_t> segment_start;  ///< first position inside the permuted block
  std::span<const int64_t> segment_length;

  // Rows of the runs that the chunks of each source are cut into (engine/chunks/row_runs.h); 0, or no entry: runs are whole
  // chunks. Below, `carry_chunk` and `take_chunk` have the numbers of runs.
  std::span<const int64_t> run_rows;
  // Shared chunks: group i shares chunks [carry_begin[i], carry_begin[i + 1]) of the arrays below with the next group
  // of its lane, or needs them for several of its segments. All arrays are empty if no chunk is shared. Of patches,
  // `next_group` is enough: which chunks a group needs follows from the patches.
  std::span<const int64_t> next_group;  ///< the next group of the lane; -1: none
  std::span<const int64_t> carry_begin;
  std::span<const int64_t> carry_source;
  std::span<const int64_t> carry_chunk;
  std::span<const int64_t> carry_on;  ///< 1: the next group needs it
  // Chunks that several chains of groups need (engine/chunks/planned_cache.h): group i is the first of its chain to need
  // chunks [take_begin[i], take_begin[i + 1]) of the arrays below. All are empty if there is no such chunk, and of
  // patches.
  std::span<const int64_t> take_begin;
  std::span<const int64_t> take_source;
  std::span<const int64_t> take_chunk;
  const PatchTable* patches = nullptr;  ///< where patches begin; null: samples are no patches

  [[nodiscard]] size_t num_groups() const { return group_lane.size(); }
};

/// The range of the samples of the block of segment s. Throws Error(kConfig) if it is outside of the array.
SampleRange find_samples(const EpochPlan& plan, size_t segment);

/// A sample at a position of a group, and the segment of the group that it is of.
struct SegmentRow {
  int64_t sample;
  size_t segment;
};

/// Temporary arrays of expand_group, reused by later calls.
struct ShuffleScratch {
  std::vector<int64_t> block_permutation;
  std::vector<int64_t> group_permutation;
  std::vector<SegmentRow> by_position;
  std::vector<int64_t> block_samples;
};

/// Placements of one group: those of segment s are [begin[s], begin[s + 1]) of `rows`.
struct GroupPlacements {
  std::vector<Placement> rows;
  std::vector<size_t> begin;
};

/// Sets `out` to the samples of a group that the consumer of the plan reads, each with the step of the epoch at which it
/// does; other consumers read the other samples of the group. Within a segment, placements are in ascending order of the
/// step. Throws Error(kConfig) if the plan contradicts itself.
void expand_group(const EpochPlan& plan, size_t group, ShuffleScratch& scratch, GroupPlacements& out);

/// Returns a number of [low, high] for a sample, drawn by seed, epoch and sample: the same for every consumer.
int64_t draw_lead(const EpochPlan& plan, int64_t sample, int64_t low, int64_t high);

/// Returns how a sample that is a patch is turned, drawn by seed, epoch and what the user calls the patch: the same for
/// every consumer, and however columns are cut. Null: not at all.
const Orientation* draw_orientation(const EpochPlan& plan, int64_t sample);

/// The first and the last step at which the consumer reads a row of a group of a mixture, at its regular steps; first >
/// last if it reads none. Rows are those of positions [offset, offset + rows) of a lane.
struct StepRange {
  int64_t first = 1;
  int64_t last = 0;
};
StepRange find_steps(const EpochPlan& plan, size_t source, int64_t pass, int64_t lane, int64_t offset, int64_t rows);

/// Lists the samples that this consumer reads, in order: out[step] = global sample index. `out` has plan.steps
/// elements.
void list_order(const EpochPlan& plan, std::span<int64_t> out);

/// Lists the segments that these samples are of: out[step] = number of the segment. `out` has plan.steps elements.
void list_segments(const EpochPlan& plan, std::span<int64_t> out);

}  // namespace zarrfeed
