#include "plan/sample_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace zarrfeed {
namespace {

constexpr size_t kGroupsAtOnce = 256;

}  // namespace

SampleStream::SampleStream(std::shared_ptr<const OwnedPlan> plan) : plan_(std::move(plan)), window_(plan_) {
  if (plan_->block_order == nullptr) return;
  unfolding_ = std::make_unique<Unfolding>(plan_);
  window_ = unfolding_->next(kGroupsAtOnce);
}

bool SampleStream::expand(int64_t end) {
  while (window_ != nullptr && group_ == window_->plan.num_groups()) {
    window_ = unfolding_ == nullptr ? nullptr : unfolding_->next(kGroupsAtOnce);
    group_ = 0;
  }
  if (window_ == nullptr || window_->plan.first_step[group_] >= end) return false;
  expand_group(window_->plan, group_++, scratch_, placements_);
  for (const Placement& sample : placements_.rows) {
    if (sample.step < next_step_ || sample.step >= plan_->plan.steps) {
      throw Error(ErrorKind::kConfig, "plan: groups are not sorted by their steps");
    }
    const auto at = static_cast<size_t>(sample.step - next_step_);
    if (at >= samples_.size()) samples_.resize(at + 1, -1);
    samples_[at] = sample.sample;
  }
  return true;
}

void SampleStream::next(std::span<int64_t> out) {
  const int64_t end = next_step_ + std::ssize(out);
  while (expand(end)) continue;
  if (samples_.size() < out.size()) samples_.resize(out.size(), -1);
  const auto behind = samples_.begin() + std::ssize(out);
  if (const auto lacking = std::find(samples_.begin(), behind, -1); lacking != behind) {
    const int64_t step = next_step_ + (lacking - samples_.begin());
    throw Error(ErrorKind::kConfig, "plan: nothing serves step " + std::to_string(step));
  }
  std::copy(samples_.begin(), behind, out.begin());
  samples_.erase(samples_.begin(), behind);
  next_step_ = end;
}

}  // namespace zarrfeed
