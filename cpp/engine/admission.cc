#include "engine/admission.h"

#include <algorithm>

namespace zarrfeed {

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
