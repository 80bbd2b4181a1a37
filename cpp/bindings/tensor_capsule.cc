#include "bindings/tensor_capsule.h"

namespace py = pybind11;

namespace zarrfeed {
namespace {

/// Calls the deleter of a tensor that nobody took over.
void drop_tensor(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kDLPackCapsule) == 0) return;
  auto* const tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, kDLPackCapsule));
  tensor->deleter(tensor);
}

}  // namespace

py::object tensor_capsule(DLManagedTensor* tensor) {
  PyObject* const capsule = PyCapsule_New(tensor, kDLPackCapsule, drop_tensor);
  if (capsule == nullptr) {
    tensor->deleter(tensor);
    throw py::error_already_set();
  }
  return py::reinterpret_steal<py::object>(capsule);
}

}  // namespace zarrfeed
