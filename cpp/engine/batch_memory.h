#pragma once
// The memory of batches: the tensors of a batch, and one pool of buffers for each.
//
// Invariants:
//   * Outputs of one tensor have the same bytes a sample and the same window, and each fits into a row of the tensor.
//   * A batch gets a buffer for every tensor, or none: acquire() gives its buffers back if one is lacking.
// Thread-safe once it is made, as its pools are.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/chunks/buffer_pool.h"
#include "transform/output_table.h"

namespace zarrfeed {

class BatchMemory {
 public:
  /// Borrows `outputs`. With `provided`, buffers come from provide() alone. Throws Error(kConfig) if an output does not
  /// fit into its tensor.
  BatchMemory(const OutputTable& outputs, int64_t batch_size, bool provided);

  /// Tensors of a batch: one for each output, but for outputs that share one.
  [[nodiscard]] size_t num_tensors() const { return pools_.size(); }
  [[nodiscard]] const std::shared_ptr<BufferPool>& pool(size_t tensor) const { return pools_[tensor]; }
  /// The tensor that each output writes to.
  [[nodiscard]] const std::vector<size_t>& tensor_of_output() const { return tensor_of_output_; }
  /// The first output that writes to a tensor.
  [[nodiscard]] const Output& output_of(size_t tensor) const { return outputs_[output_of_tensor_[tensor]]; }
  /// Bytes of a sample, over all tensors.
  [[nodiscard]] size_t sample_bytes() const;
  /// Bytes of the buffers of a batch.
  [[nodiscard]] size_t batch_bytes() const;

  /// Sets `buffers`, one for each tensor, to buffers of the pools. Throws std::bad_alloc if the system has no memory.
  void acquire(std::span<uint8_t*> buffers);
  /// Gives the buffers of a batch back.
  void release(std::span<uint8_t* const> buffers);
  /// Adds one buffer for each tensor to provided memory.
  void provide(std::span<uint8_t* const> buffers);
  /// Returns free memory to the system, now and whenever a buffer is released from now on.
  void retire();

 private:
  /// Returns the tensor of an output; makes the pool of a new one.
  size_t add_output(size_t number, int64_t batch_size, bool provided);

  const OutputTable& outputs_;
  std::vector<size_t> tensor_of_output_;
  std::vector<size_t> output_of_tensor_;  ///< the first output of each tensor
  std::vector<std::shared_ptr<BufferPool>> pools_;
};

}  // namespace zarrfeed
