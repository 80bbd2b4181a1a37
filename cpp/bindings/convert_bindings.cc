// The conversion of items that Python made: the pixels of images, the elements of sparse rows.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>

#include "base/error.h"
#include "bindings/gil_release.h"
#include "bindings/spec_bindings.h"
#include "transform/convert/convert.h"
#include "transform/patches/resize.h"

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

/// Resizes the box (left, top, right, bottom) of pixels (height, width, channels) into `dest`: (channels, height, width).
void resize_pixels(py::array_t<uint8_t, py::array::c_style> dest,
                   const py::array_t<uint8_t, py::array::c_style>& source, const std::array<int64_t, 4>& box,
                   bool mirrored) {
  const auto [left, top, right, bottom] = box;
  if (dest.ndim() != 3 || source.ndim() != 3 || dest.shape(0) != source.shape(2) || dest.size() == 0 || left < 0 ||
      top < 0 || left >= right || top >= bottom || right > source.shape(1) || bottom > source.shape(0)) {
    throw Error(ErrorKind::kConfig, "the box must lie in the image, and the destination have as many channels");
  }
  uint8_t* const to = dest.mutable_data();
  const Pixels pixels{source.data(), source.shape(0), source.shape(1), source.shape(2)};
  const int64_t height = dest.shape(1);
  const int64_t width = dest.shape(2);
  const GilRelease release;
  resize_image(to, height, width, pixels, {top, left, bottom, right}, mirrored);
}

}  // namespace

void bind_converter(pybind11::module_& m) {
  py::class_<Converter>(m, "Converter")
      .def(py::init([](const ConversionSpec& spec) { return Converter(spec); }), py::arg("spec"))
      .def("convert", &convert_items, py::arg("dest"), py::arg("source"), py::arg("position"));
  m.def("resize_pixels", &resize_pixels, py::arg("dest").noconvert(), py::arg("source").noconvert(), py::arg("box"),
        py::arg("mirrored"));
}

}  // namespace zarrfeed
