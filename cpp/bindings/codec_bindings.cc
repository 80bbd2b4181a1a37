// Codecs as Python describes them, and decoding with one of them.

#include <pybind11/pybind11.h>

#include <string>

#include "base/buffer.h"
#include "base/bytes.h"
#include "bindings/spec_bindings.h"
#include "codecs/codec.h"
#include "codecs/codec_pipeline.h"
#include "codecs/codec_table.h"
#include "spec/codec_spec.h"

namespace zarrfeed {
namespace {

namespace py = pybind11;

CodecSpec make_codec(const std::string& name, bool checksum_at_start, size_t element_bytes, size_t run_bytes,
                     size_t stride, bool big_endian) {
  return {std::string(find_codec(name).name), checksum_at_start, element_bytes, run_bytes, stride, big_endian};
}

/// Undoes one codec that is no checksum, for zarr-python, into at most `most` bytes.
py::bytes undo_codec(const CodecSpec& codec, const py::buffer& stored, size_t most) {
  const py::buffer_info info = stored.request();
  const CodecEntry& entry = find_codec(codec.name);
  DecodeScratch scratch;
  Buffer buffer;
  MutableBytes made;
  {
    const py::gil_scoped_release unlocked;
    const Bytes in(static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size * info.itemsize));
    made = buffer.reserve(most);
    if (entry.undo != nullptr) {
      check_decoded_bytes(in.size(), most);
      entry.undo(in, made.data(), codec);
    } else if (entry.decode == nullptr) {
      throw Error(ErrorKind::kUnsupported, codec.name + " is a checksum");
    } else {
      made = made.first(entry.decode(in, made, codec, scratch));
    }
  }
  return {reinterpret_cast<const char*>(made.data()), made.size()};
}

}  // namespace

void bind_codecs(py::module_& m) {
  py::class_<CodecSpec>(m, "CodecSpec")
      .def(py::init(&make_codec), py::arg("name"), py::kw_only(), py::arg("checksum_at_start") = false,
           py::arg("element_bytes") = 1, py::arg("run_bytes") = 0, py::arg("stride") = 1,
           py::arg("big_endian") = false);
  m.def("undo_codec", &undo_codec, py::arg("codec"), py::arg("stored"), py::arg("most"));
  m.def("codec_kinds", [] {
    py::dict kinds;
    for (const CodecEntry& codec : codec_table()) {
      const char* const kind = codec.decode != nullptr ? "compressor" : codec.undo != nullptr ? "filter" : "checksum";
      kinds[py::str(std::string(codec.name))] = kind;
    }
    return kinds;
  });
}

}  // namespace zarrfeed
