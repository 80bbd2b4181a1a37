// The memory that a DataLoader worker shares with its training process. Part of the bindings.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/process.h"
#include "bindings/spec_bindings.h"
#include "bindings/tensor_capsule.h"
#include "engine/shared_pool.h"

namespace py = pybind11;

namespace zarrfeed {
namespace {

/// A DLPack capsule of bytes, whose lease ends when the tensor is dropped.
py::object capsule_of(SharedPool::Lease lease, size_t bytes) {
  return tensor_capsule(make_bytes_tensor(std::move(lease.keeps), lease.data, static_cast<int64_t>(bytes)));
}

py::object acquire(SharedPool& pool, size_t bytes) {
  auto lease = pool.acquire(bytes);
  return lease ? capsule_of(std::move(*lease), bytes) : py::none();
}

py::object share(SharedPool& pool, uintptr_t address, size_t bytes) {
  const auto handle = pool.share(reinterpret_cast<const uint8_t*>(address), bytes);
  if (!handle) return py::none();
  return py::make_tuple(handle->slot, handle->generation, handle->begin, handle->bytes);
}

py::object take_over(SharedPool& pool, uint32_t slot, uint32_t generation, size_t begin, size_t bytes) {
  return capsule_of(pool.take_over({slot, generation, begin, bytes}), bytes);
}

py::object find_slot(uintptr_t address) {
  auto found = SharedPool::find_slot(reinterpret_cast<const uint8_t*>(address));
  if (!found) return py::none();
  return py::make_tuple(std::move(found->pool), reinterpret_cast<uintptr_t>(found->data), found->bytes);
}

}  // namespace

void bind_shared_pool(py::module_& m) {
  m.def("process_start", &process_start, py::arg("process"));
  py::class_<SharedPool, std::shared_ptr<SharedPool>>(m, "SharedPool")
      .def_static("create", &SharedPool::create, py::arg("id"), py::arg("most_held_bytes"))
      .def_static("open", &SharedPool::open, py::arg("descriptor"), py::arg("id"))
      .def_static("find", &SharedPool::find, py::arg("id"))
      .def_static("find_slot", &find_slot, py::arg("address"))
      .def_static("forget_over", &SharedPool::forget_over)
      .def("acquire", &acquire, py::arg("bytes"))
      .def("share", &share, py::arg("address"), py::arg("bytes"))
      .def("take_over", &take_over, py::arg("slot"), py::arg("generation"), py::arg("begin"), py::arg("bytes"))
      .def("retire", &SharedPool::retire)
      .def("descriptor", &SharedPool::descriptor)
      .def("owner", &SharedPool::owner)
      .def("is_opened", &SharedPool::is_opened)
      .def("is_over", &SharedPool::is_over)
      .def("num_leases", &SharedPool::num_leases)
      .def("num_slots", &SharedPool::num_slots)
      .def("slot_bytes", &SharedPool::slot_bytes);
}

}  // namespace zarrfeed
