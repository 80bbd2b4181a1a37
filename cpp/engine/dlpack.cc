#include "engine/dlpack.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace zarrfeed {
namespace {

constexpr int32_t kCpu = 1;

struct Borrowed {
  DLManagedTensor tensor{};
  std::shared_ptr<void> keeps;
  std::shared_ptr<BufferPool> memory;  ///< of a buffer that goes back; null: `keeps` has it
  std::vector<int64_t> shape;
};

void give_back(DLManagedTensor* tensor) {
  const std::unique_ptr<Borrowed> borrowed(static_cast<Borrowed*>(tensor->manager_ctx));
  if (borrowed->memory) borrowed->memory->release(static_cast<uint8_t*>(tensor->dl_tensor.data));
}

DLManagedTensor* finish(std::unique_ptr<Borrowed> borrowed, uint8_t* data, DLDataType dtype) {
  borrowed->tensor.dl_tensor = {.data = data,
                                .device = {kCpu, 0},
                                .ndim = static_cast<int32_t>(borrowed->shape.size()),
                                .dtype = dtype,
                                .shape = borrowed->shape.data(),
                                .strides = nullptr,
                                .byte_offset = 0};
  borrowed->tensor.manager_ctx = borrowed.get();
  borrowed->tensor.deleter = give_back;
  return &borrowed.release()->tensor;
}

}  // namespace

DLManagedTensor* make_tensor(std::shared_ptr<BufferPool> memory, uint8_t* buffer, int64_t rows,
                             const TensorSpec& spec) {
  auto borrowed = std::make_unique<Borrowed>();
  borrowed->memory = std::move(memory);
  borrowed->shape.reserve(spec.sample_shape.size() + 1);
  borrowed->shape.push_back(rows);
  borrowed->shape.insert(borrowed->shape.end(), spec.sample_shape.begin(), spec.sample_shape.end());
  return finish(std::move(borrowed), buffer, {spec.code, spec.bits, 1});
}

DLManagedTensor* make_bytes_tensor(std::shared_ptr<void> keeps, uint8_t* data, int64_t bytes) {
  constexpr uint8_t kUnsigned = 1;
  auto borrowed = std::make_unique<Borrowed>();
  borrowed->keeps = std::move(keeps);
  borrowed->shape = {bytes};
  return finish(std::move(borrowed), data, {kUnsigned, 8, 1});
}

}  // namespace zarrfeed
