#pragma once
// The arrays of an EpochPlan, owned; or, of a plan that is unfolded, what its groups follow from.

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/block_order.h"
#include "plan/mixture.h"
#include "plan/patch_table.h"
#include "plan/row_order.h"
#include "plan/sample_table.h"

namespace zarrfeed {

struct OwnedPlan {
  EpochPlan plan;  ///< its spans are set by bind()
  std::vector<int64_t> group_begin, group_lane, group_offset, group_number, group_turn, first_step, last_step;
  std::vector<int64_t> segment_block, segment_first, segment_rows, segment_start, segment_length;
  std::vector<int64_t> extra_position, extra_step;
  std::shared_ptr<const SampleTable> selected;
  std::vector<int64_t> next_group, carry_begin, carry_source, carry_chunk, carry_on;
  std::vector<int64_t> take_begin, take_source, take_chunk, run_rows;
  std::shared_ptr<const PatchTable> patches;
  std::shared_ptr<const Mixture> mixture;
  std::vector<int64_t> group_source, group_pass, source_lanes, source_length;
  std::vector<uint64_t> source_seed;
  /// The blocks that lanes are cut from, of a plan that is unfolded (unfolding.h); the arrays of groups and segments
  /// are empty. Null: the arrays have all groups.
  std::shared_ptr<const BlockOrder> block_order;
  int64_t mix = 1;  ///< of a plan that is unfolded: pieces of a group
  /// For a window of a plan that is unfolded: that plan, whose extra positions and samples the window borrows.
  std::shared_ptr<const OwnedPlan> whole;

  void bind() {
    plan.extra_position = extra_position;
    plan.extra_step = extra_step;
    plan.selected = selected.get();
    plan.next_group = next_group;
    plan.carry_begin = carry_begin;
    plan.carry_source = carry_source;
    plan.carry_chunk = carry_chunk;
    plan.carry_on = carry_on;
    plan.take_begin = take_begin;
    plan.take_source = take_source;
    plan.take_chunk = take_chunk;
    plan.run_rows = run_rows;
    plan.patches = patches.get();
    plan.mixture = mixture.get();
    plan.group_source = group_source;
    plan.group_pass = group_pass;
    plan.source_seed = source_seed;
    plan.source_lanes = source_lanes;
    plan.source_length = source_length;
    bind_groups();
  }

  /// Sets the spans of groups and segments alone.
  void bind_groups() {
    plan.group_begin = group_begin;
    plan.group_lane = group_lane;
    plan.group_offset = group_offset;
    plan.group_number = group_number;
    plan.group_turn = group_turn;
    plan.first_step = first_step;
    plan.last_step = last_step;
    plan.segment_block = segment_block;
    plan.segment_first = segment_first;
    plan.segment_rows = segment_rows;
    plan.segment_start = segment_start;
    plan.segment_length = segment_length;
  }
};

}  // namespace zarrfeed
