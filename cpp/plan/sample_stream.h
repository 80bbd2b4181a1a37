#pragma once
// The sample stream: lists the samples that a consumer reads, in order, some at a time. It holds the samples of the groups
// that are open, and never those of the whole epoch.
//
// Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "plan/owned_plan.h"
#include "plan/row_order.h"
#include "plan/unfolding.h"

namespace zarrfeed {

class SampleStream {
 public:
  explicit SampleStream(std::shared_ptr<const OwnedPlan> plan);

  /// Samples that were not listed yet.
  [[nodiscard]] int64_t left() const { return plan_->plan.steps - next_step_; }
  /// Sets `out`, which has left() elements at most, to the next samples. Throws Error(kConfig) if the plan contradicts
  /// itself.
  void next(std::span<int64_t> out);

 private:
  /// Expands the next group if it serves a step before `end`; false if there is none.
  bool expand(int64_t end);

  const std::shared_ptr<const OwnedPlan> plan_;
  std::unique_ptr<Unfolding> unfolding_;     ///< null: all groups are listed
  std::shared_ptr<const OwnedPlan> window_;  ///< the groups that are expanded next; null: there are no more
  size_t group_ = 0;                         ///< of `window_`
  int64_t next_step_ = 0;
  std::deque<int64_t> samples_;  ///< from `next_step_` on; -1 where no group was expanded that serves the step
  ShuffleScratch scratch_;
  GroupPlacements placements_;
};

}  // namespace zarrfeed
