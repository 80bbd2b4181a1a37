#pragma once
// Admission: counts the open batches of an epoch, and decides if the next group of the plan may be admitted.
//
// A group is admitted when the engine opens the batches that the group serves and makes the tasks of the group. A batch
// is open from then until it is delivered. Invariants:
//   * Groups are admitted in the order of the plan, which is the order of the first step that they serve. A group is
//     admitted only when every batch that it serves is open.
//   * Batches are opened and delivered in order: [delivered(), opened()) are open. There are at most `max_open_batches`
//     of them.
//   * Batches are opened only for a group that is admitted, never ahead. If batches are written to memory that the
//     caller provides, each batch takes one set of provided buffers when it is opened.
//   * The groups of a plan come in parts: all of them at once, or window after window of a plan that is unfolded. A
//     group that was admitted keeps its part alive. Each part is checked when it begins.
//   * No deadlock: a group that the oldest open batch still needs is the next group to be admitted, since no group
//     before it begins later. Its batches fit, since `max_open_batches` is at least required_open_batches() of the
//     plan.
// The class only counts: it owns no buffer and starts nothing. It is not thread-safe: the engine calls it under its
// mutex.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "plan/owned_plan.h"
#include "plan/row_order.h"

namespace zarrfeed {

class Admission {
 public:
  /// `provided_memory`: a batch needs a set of provided buffers to be opened.
  Admission(int64_t batch_size, bool provided_memory) : batch_size_(batch_size), provided_memory_(provided_memory) {}

  /// Throws Error(kConfig) unless groups begin in the order of the plan, and serve steps of it: the invariants
  /// above rest on this.
  static void check(const EpochPlan& plan);
  /// Throws the Error(kBudget) of a plan that needs more open batches than there may be.
  [[noreturn]] static void throw_needs_more(int64_t required, int64_t max_open_batches);
  /// Fewest batches that must be open at once to read `plan`.
  static int64_t required_open_batches(const EpochPlan& plan, int64_t batch_size);

  /// Returns the part of the plan behind the parts before; null: there is none.
  using More = std::function<std::shared_ptr<const OwnedPlan>()>;
  /// A group of a part of the plan.
  struct Group {
    std::shared_ptr<const OwnedPlan> part;
    size_t number = 0;  ///< in its part
  };

  /// Fewest batches that must be open at once to read a plan that is unfolded.
  static int64_t required_unfolded(const std::shared_ptr<const OwnedPlan>& plan, int64_t batch_size);

  /// Begins an epoch: no group is admitted, no batch is open, no buffers are provided. `plan` lists all groups if there
  /// is no `more`. Otherwise `more` returns the parts that list them. If a part contradicts check() or needs more open
  /// batches, this function and admit() throw Error(kConfig) or Error(kBudget).
  void begin_epoch(std::shared_ptr<const OwnedPlan> plan, int64_t max_open_batches, More more = {});

  /// True if all groups of the plan were admitted.
  [[nodiscard]] bool is_done() const { return next_group_ == num_groups_; }
  /// True if there is a next group whose batches may all be open.
  [[nodiscard]] bool can_admit() const {
    if (is_done()) return false;
    const int64_t last = last_batch_of_next();
    if (last - delivered_ >= max_open_batches_) return false;
    return !provided_memory_ || last - opened_ < provided_sets_;
  }
  /// The batches [delivered(), needed_batches()) have to be delivered before another group can be admitted; none, if
  /// the next one waits for buffers alone. All groups were admitted: all batches have to.
  [[nodiscard]] int64_t needed_batches(int64_t num_batches) const {
    return is_done() ? num_batches : last_batch_of_next() - max_open_batches_ + 1;
  }
  /// Admits the next group, for which can_admit() holds, and returns it. Calls open(batch) for each batch that the
  /// group serves and that is not open yet. If open() throws, that batch is not open and the group is not admitted.
  template <typename Open>
  Group admit(const Open& open) {
    for (const int64_t last = last_batch_of_next(); opened_ <= last; ++opened_) {
      open(opened_);
      if (provided_memory_) --provided_sets_;
    }
    Group group{part_, next_group_++};
    if (is_done() && more_) go_on();
    return group;
  }

  /// Delivers the oldest open batch.
  void deliver() { ++delivered_; }
  /// Adds one set of provided buffers: one buffer for each field.
  void provide() { ++provided_sets_; }

  /// Number of batches that were opened, which is the number of the next batch to be opened.
  [[nodiscard]] int64_t opened() const { return opened_; }
  /// Number of batches that were delivered, which is the number of the next batch to be delivered.
  [[nodiscard]] int64_t delivered() const { return delivered_; }

 private:
  /// Unfolds the next groups of the plan.
  void go_on();
  void check_part();
  [[nodiscard]] int64_t last_batch_of_next() const { return part_->plan.last_step[next_group_] / batch_size_; }

  const int64_t batch_size_;
  const bool provided_memory_;
  std::shared_ptr<const OwnedPlan> part_;  ///< the part that has the next group
  More more_;
  int64_t first_step_ = 0;  ///< first step of the last group of the parts before
  int64_t last_batch_ = 0;  ///< last batch that groups of these parts serve
  size_t num_groups_ = 0;
  size_t next_group_ = 0;
  int64_t max_open_batches_ = 0;
  int64_t opened_ = 0;
  int64_t delivered_ = 0;
  int64_t provided_sets_ = 0;  ///< sets of provided buffers that no open batch has taken
};

}  // namespace zarrfeed
