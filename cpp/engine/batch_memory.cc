#include "engine/batch_memory.h"

#include <string>

#include "base/error.h"

namespace zarrfeed {

BatchMemory::BatchMemory(const OutputTable& outputs, int64_t batch_size, bool provided) : outputs_(outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) tensor_of_output_.push_back(add_output(i, batch_size, provided));
}

size_t BatchMemory::add_output(size_t number, int64_t batch_size, bool provided) {
  const Output& output = outputs_[number];
  const auto& slot = output.spec().slot;
  const size_t tensor = slot ? slot->tensor : pools_.size();
  if (slot && slot->offset + output.row_bytes() > slot->row_bytes) {
    throw Error(ErrorKind::kConfig, "field " + std::to_string(number) + " does not fit into a row of its tensor");
  }
  if (tensor == pools_.size()) {
    output_of_tensor_.push_back(number);
    pools_.push_back(std::make_shared<BufferPool>(output.sample_bytes() * static_cast<size_t>(batch_size), provided));
  } else if (tensor > pools_.size() || output_of(tensor).sample_bytes() != output.sample_bytes() ||
             output_of(tensor).num_offsets() != output.num_offsets()) {
    throw Error(ErrorKind::kConfig, "field " + std::to_string(number) + " does not fit into its tensor");
  }
  return tensor;
}

size_t BatchMemory::sample_bytes() const {
  size_t bytes = 0;
  for (size_t tensor = 0; tensor < num_tensors(); ++tensor) bytes += output_of(tensor).sample_bytes();
  return bytes;
}

size_t BatchMemory::batch_bytes() const {
  size_t bytes = 0;
  for (const auto& pool : pools_) bytes += pool->buffer_bytes();
  return bytes;
}

void BatchMemory::acquire(std::span<uint8_t*> buffers) {
  size_t acquired = 0;
  try {
    for (; acquired < num_tensors(); ++acquired) buffers[acquired] = pools_[acquired]->acquire();
  } catch (...) {
    while (acquired-- > 0) pools_[acquired]->release(buffers[acquired]);
    throw;
  }
}

void BatchMemory::release(std::span<uint8_t* const> buffers) {
  for (size_t tensor = 0; tensor < num_tensors(); ++tensor) pools_[tensor]->release(buffers[tensor]);
}

void BatchMemory::provide(std::span<uint8_t* const> buffers) {
  for (size_t tensor = 0; tensor < num_tensors(); ++tensor) pools_[tensor]->provide(buffers[tensor]);
}

void BatchMemory::retire() {
  for (const auto& pool : pools_) pool->retire();
}

}  // namespace zarrfeed
