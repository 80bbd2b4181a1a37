#include "engine/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "plan/unfolding.h"

namespace zarrfeed {

namespace {

/// Checks groups that come after those that begin at a step; returns the first step of the last one.
int64_t check_after(const EpochPlan& plan, int64_t begin) {
  for (size_t g = 0; g < plan.num_groups(); ++g) {
    const int64_t first = plan.first_step[g];
    const int64_t last = plan.last_step[g];
    if (first < begin || last < first || last >= plan.steps) {
      throw Error(ErrorKind::kConfig, "plan: group " + std::to_string(g) + " serves the steps " +
                                          std::to_string(first) + " to " + std::to_string(last) + " of " +
                                          std::to_string(plan.steps) + ", after step " + std::to_string(begin));
    }
    begin = first;
  }
  return begin;
}

/// Fewest open batches that groups need that come after those that serve a batch; moves `last_batch` on.
int64_t required_after(const EpochPlan& plan, int64_t batch_size, int64_t& last_batch) {
  int64_t required = 1;
  for (size_t g = 0; g < plan.num_groups(); ++g) {
    last_batch = std::max(last_batch, plan.last_step[g] / batch_size);
    required = std::max(required, last_batch - plan.first_step[g] / batch_size + 1);
  }
  return required;
}

}  // namespace

void Admission::check(const EpochPlan& plan) {
  check_after(plan, 0);
}

int64_t Admission::required_open_batches(const EpochPlan& plan, int64_t batch_size) {
  int64_t last_batch = 0;
  return required_after(plan, batch_size, last_batch);
}

int64_t Admission::required_unfolded(const std::shared_ptr<const OwnedPlan>& plan, int64_t batch_size) {
  constexpr size_t kGroupsAtOnce = 1024;
  int64_t required = 1;
  int64_t last_batch = 0;
  Unfolding unfolding(plan);
  while (const auto window = unfolding.next(kGroupsAtOnce)) {
    required = std::max(required, required_after(window->plan, batch_size, last_batch));
  }
  return required;
}

void Admission::begin_epoch(std::shared_ptr<const OwnedPlan> plan, int64_t max_open_batches, More more) {
  part_ = std::move(plan);
  more_ = std::move(more);
  num_groups_ = part_->plan.num_groups();
  next_group_ = 0;
  max_open_batches_ = max_open_batches;
  opened_ = delivered_ = provided_sets_ = 0;
  first_step_ = last_batch_ = 0;
  if (more_) go_on();
}

void Admission::go_on() {
  auto part = more_();
  if (part == nullptr) return;
  part_ = std::move(part);
  num_groups_ = part_->plan.num_groups();
  next_group_ = 0;
  check_part();
}

void Admission::check_part() {
  first_step_ = check_after(part_->plan, first_step_);
  const int64_t required = required_after(part_->plan, batch_size_, last_batch_);
  if (required > max_open_batches_) throw_needs_more(required, max_open_batches_);
}

void Admission::throw_needs_more(int64_t required, int64_t max_open_batches) {
  throw Error(ErrorKind::kBudget, "this epoch needs " + std::to_string(required) +
                                      " batches open at once, the memory budget has room for " +
                                      std::to_string(max_open_batches));
}

}  // namespace zarrfeed
