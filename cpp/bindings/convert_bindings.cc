// The conversion of items that Python made: the pixels of images, the elements of sparse rows.

#include <pybind11/numpy.h>

#include "base/error.h"
#include "bindings/gil_release.h"
#include "bindings/spec_bindings.h"
#include "transform/convert/convert.h"

namespace zarrfeed {
namespace {

namespace py = pybind11;

/// Converts all items of `source`, the first of which is item `position` of its sample, to those of `dest`. Both arrays
/// are contiguous. Throws Error(kConfig) if their bytes do not fit the conversion.
void convert_items(const Converter& converter, py::array dest, const py::array& source, size_t position) {
  const auto size = static_cast<size_t>(source.nbytes());
  const size_t count = size / converter.source_item_bytes();
  const auto is_contiguous = [](const py::array& array) { return (array.flags() & py::array::c_style) != 0; };
  if (!is_contiguous(dest) || !is_contiguous(source) || size != count * converter.source_item_bytes() ||
      static_cast<size_t>(dest.nbytes()) != count * converter.dest_item_bytes()) {
    throw Error(ErrorKind::kConfig,
                "converted items must be contiguous, and as many as their destination has room for");
  }
  auto* const to = static_cast<uint8_t*>(dest.mutable_data());
  const auto* const from = static_cast<const uint8_t*>(source.data());
  const GilRelease release;
  converter.convert(to, from, count, position);
}

}  // namespace

void bind_converter(pybind11::module_& m) {
  py::class_<Converter>(m, "Converter")
      .def(py::init([](const ConversionSpec& spec) { return Converter(spec); }), py::arg("spec"))
      .def("convert", &convert_items, py::arg("dest"), py::arg("source"), py::arg("position"));
}

}  // namespace zarrfeed
