#pragma once
// A batch buffer as a DLPack tensor, which torch and other libraries take over without a copy.

#include <cstdint>
#include <memory>

#include "engine/chunks/buffer_pool.h"
#include "spec/field_spec.h"

namespace zarrfeed {

/// The structures of DLPack, version 0: https://dmlc.github.io/dlpack/latest/c_api.html.
struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

/// The name of a Python capsule that holds a DLManagedTensor, until a library takes the tensor over.
inline constexpr const char* kDLPackCapsule = "dltensor";

/// Makes a tensor of shape (rows, *spec.sample_shape), in C order, over a buffer. The deleter, which any thread may
/// call, releases the buffer to `memory`. The tensor keeps `memory` alive.
DLManagedTensor* make_tensor(std::shared_ptr<BufferPool> memory, uint8_t* buffer, int64_t rows, const TensorSpec& spec);
/// Makes a tensor of bytes over memory that `keeps` keeps; the deleter, which any thread may call, drops `keeps`.
DLManagedTensor* make_bytes_tensor(std::shared_ptr<void> keeps, uint8_t* data, int64_t bytes);

}  // namespace zarrfeed
