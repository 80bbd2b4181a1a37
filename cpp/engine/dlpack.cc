#include "engine/dlpack.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace zarrfeed {
namespace {

constexpr int32_t kCpu = 1;

struct Loan {
  DLManagedTensor tensor{};
  std::shared_ptr<BatchMemory> memory;
  std::vector<int64_t> shape;
};

void give_back(DLManagedTensor* tensor) {
  const std::unique_ptr<Loan> loan(static_cast<Loan*>(tensor->manager_ctx));
  loan->memory->release(static_cast<uint8_t*>(tensor->dl_tensor.data));
}

}  // namespace

DLManagedTensor* make_tensor(std::shared_ptr<BatchMemory> memory, uint8_t* buffer, int64_t rows,
                             const TensorSpec& spec) {
  auto loan = std::make_unique<Loan>();
  loan->memory = std::move(memory);
  loan->shape.reserve(spec.sample_shape.size() + 1);
  loan->shape.push_back(rows);
  loan->shape.insert(loan->shape.end(), spec.sample_shape.begin(), spec.sample_shape.end());
  loan->tensor.dl_tensor = {.data = buffer,
                            .device = {kCpu, 0},
                            .ndim = static_cast<int32_t>(loan->shape.size()),
                            .dtype = {spec.code, spec.bits, 1},
                            .shape = loan->shape.data(),
                            .strides = nullptr,
                            .byte_offset = 0};
  loan->tensor.manager_ctx = loan.get();
  loan->tensor.deleter = give_back;
  return &loan.release()->tensor;
}

}  // namespace zarrfeed
