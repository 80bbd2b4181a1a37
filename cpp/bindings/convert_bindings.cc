// The conversion of items that Python has in memory.

#include <pybind11/numpy.h>

#include "bindings/gil_release.h"
#include "bindings/spec_bindings.h"
#include "spec/conversion_spec.h"
#include "transform/convert/convert.h"

namespace zarrfeed {
namespace {

namespace py = pybind11;

/// Converts the bytes of items that are in memory; steps have one number for all items.
void convert_items(const ConversionSpec& spec, const py::array_t<uint8_t, py::array::c_style>& source,
                   py::array_t<uint8_t, py::array::c_style> dest) {
  const Converter converter(spec);
  const auto count = static_cast<size_t>(source.size()) / converter.source_item_bytes();
  if (static_cast<size_t>(dest.size()) != count * converter.dest_item_bytes()) {
    throw Error(ErrorKind::kConfig, "source and dest have other numbers of items");
  }
  uint8_t* to = dest.mutable_data();
  const uint8_t* from = source.data();
  const GilRelease release;
  converter.convert(to, from, count, 0);
}

}  // namespace

void bind_convert(py::module_& m) {
  m.def("convert_items", &convert_items, py::arg("conversion"), py::arg("source"), py::arg("dest"));
}

}  // namespace zarrfeed
