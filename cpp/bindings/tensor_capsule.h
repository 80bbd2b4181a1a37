#pragma once
// Tensors on their way to Python. Part of the bindings.

#include <pybind11/pybind11.h>

#include "engine/dlpack.h"

namespace zarrfeed {

/// A DLPack capsule of a tensor, which it owns until a library takes the tensor over. Needs the GIL.
pybind11::object tensor_capsule(DLManagedTensor* tensor);

}  // namespace zarrfeed
