#include "engine/admission.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace zarrfeed {

void Admission::check(const EpochPlan& plan) {
  int64_t begin = 0;
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
}

int64_t Admission::required_open_batches(const EpochPlan& plan, int64_t batch_size) {
  int64_t required = 1;
  int64_t last_batch = 0;
  for (size_t g = 0; g < plan.num_groups(); ++g) {
    last_batch = std::max(last_batch, plan.last_step[g] / batch_size);
    required = std::max(required, last_batch - plan.first_step[g] / batch_size + 1);
  }
  return required;
}

void Admission::begin_epoch(const EpochPlan& plan, int64_t max_open_batches) {
  plan_ = &plan;
  num_groups_ = plan.num_groups();
  next_group_ = 0;
  max_open_batches_ = max_open_batches;
  opened_ = delivered_ = provided_sets_ = 0;
}

}  // namespace zarrfeed
