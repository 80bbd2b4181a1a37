#pragma once
// Unfolding: makes the groups of a plan while the plan is read, some at a time, so that neither the first batch nor the
// memory of a plan grows with the number of blocks.
//
// A plan that is unfolded names the order of its blocks, lanes, and what its consumer reads. A cursor on each lane of
// the consumer makes one group after another; a heap merges the cursors by the first step that their groups serve. So
// the groups come in the order of a plan whose groups are all listed, and are the same groups, number by number.
// The first groups of a lane are found by a search in the order of blocks, wherever the consumer begins: a run is
// resumed at the price of one search for each of its lanes.
//
// Groups that serve a later turn of the epoch order are few, and are found when the unfolding begins.
//
// Not thread-safe: the engine calls it under its mutex.

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/owned_plan.h"

namespace zarrfeed {

class Unfolding {
 public:
  /// `plan` has a block order. Throws Error(kConfig) if it contradicts itself, or if its extra positions, in the first
  /// turn, are not read in ascending order, all positions of the stride among them.
  explicit Unfolding(std::shared_ptr<const OwnedPlan> plan);

  /// Returns the next groups of the plan, `most` at most and one at least; null when there are no more.
  std::shared_ptr<const OwnedPlan> next(size_t most);

 private:
  /// The positions that a group takes of one block.
  struct Piece {
    BlockRows block;
    int64_t start = 0;   ///< first position inside the permuted block
    int64_t length = 0;  ///< positions
  };
  struct Group {
    int64_t lane = 0, offset = 0, rows = 0, number = 0, turn = 0;
    int64_t first_step = 0, last_step = -1;
    std::vector<Piece> pieces;
  };
  /// A position of no stride: where it stands in its lane, and the step at which it is read.
  struct Extra {
    int64_t lane = 0, offset = 0, step = 0;
  };
  /// The begin of the next group of a lane.
  struct Cursor {
    int64_t lane = 0;
    int64_t number = 0;                  ///< of the next group
    int64_t ordinal = 0;                 ///< of its first block
    int64_t begin = 0;                   ///< position in the block order at which that block begins
    int64_t last = -1;                   ///< last position of the lane that the consumer reads
    size_t extra = 0, extra_end = 0;     ///< the extra positions of the lane that were not reached yet
    std::vector<uint32_t> held_indices;  ///< of the blocks from `ordinal` on, without the first `used`
    size_t used = 0;
    Group group;  ///< the one that was made last
  };

  [[nodiscard]] int64_t lane_begin(int64_t lane) const;
  /// Sets the cursor to the group that has a position of the lane.
  void seek(Cursor& cursor, int64_t offset) const;
  /// Makes the next group of the cursor; false at the end of its lane.
  bool make_group(Cursor& cursor) const;
  /// Makes the next group of the cursor that serves a step; false if there is none.
  bool advance(Cursor& cursor) const;
  /// Sets the steps that the stride and the extra positions of a group serve.
  void find_steps(Cursor& cursor) const;
  void add_turns(const std::vector<size_t>& extras);
  static void append(const Group& group, OwnedPlan& out);

  const std::shared_ptr<const OwnedPlan> whole_;
  const EpochPlan& plan_;
  const BlockOrder& block_order_;
  int64_t common_ = 1;         ///< gcd of stride and lanes
  int64_t period_ = 1;         ///< the consumer reads every so many positions of a lane
  int64_t inverse_ = 0;        ///< of lanes / common, modulo `period_`
  std::vector<Extra> extras_;  ///< of the first turn, by lane and offset
  std::vector<Cursor> cursors_;
  std::vector<size_t> heap_;  ///< cursors that have a group, the one with the earliest first step in front
  std::vector<Group> turns_;  ///< groups of later turns, the one with the earliest first step last
};

/// Lists the samples of a plan that is unfolded, as list_order() does those of listed groups.
void list_unfolded(const std::shared_ptr<const OwnedPlan>& plan, std::span<int64_t> out);

}  // namespace zarrfeed
