// The node cache, as Python makes it for the engine and looks at it. Part of the bindings.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/gil_release.h"
#include "bindings/spec_bindings.h"
#include "storage/cache_directory.h"
#include "storage/cache_entry.h"
#include "storage/object_versions.h"
#include "storage/stores.h"

namespace py = pybind11;

namespace zarrfeed {
namespace {

/// (0, None): the whole object; (-n, None): its last n bytes; else the first byte and the end.
ByteRange range_of(int64_t begin, std::optional<int64_t> end) {
  if (end) return ByteRange::at(static_cast<uint64_t>(begin), static_cast<uint64_t>(*end - begin));
  return begin < 0 ? ByteRange::last(static_cast<uint64_t>(-begin)) : ByteRange{};
}

CacheEntry entry_of(const CachedArray& array, const std::string& key, const std::string& version, int64_t begin,
                    std::optional<int64_t> end) {
  return CacheEntry(
      {.store = array.store, .object = array.prefix + key, .version = version, .range = range_of(begin, end)});
}

py::object read_entry(const CachedArray& array, const std::string& key, int64_t begin, std::optional<int64_t> end,
                      size_t max_bytes) {
  const auto version = array.versions->find(key);
  if (!version) return py::none();
  Buffer room;
  Bytes bytes;
  auto found = CacheDirectory::Found::kMiss;
  {
    const GilRelease release;
    found = array.directory->read(entry_of(array, key, *version, begin, end), room, max_bytes, true, bytes);
  }
  if (found == CacheDirectory::Found::kDamaged) return py::bool_(false);
  if (found != CacheDirectory::Found::kHit) return py::none();
  return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// "admitted", "full" or "failed"; "" for an object without version.
std::string admit_entry(const CachedArray& array, const std::string& key, int64_t begin, std::optional<int64_t> end,
                        const py::buffer& stored) {
  const auto version = array.versions->find(key);
  if (!version) return "";
  const py::buffer_info info = stored.request();
  const Bytes bytes{static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)};
  const GilRelease release;
  switch (array.directory->admit(entry_of(array, key, *version, begin, end), bytes)) {
    case CacheDirectory::Admitted::kYes:
      return "admitted";
    case CacheDirectory::Admitted::kFull:
      return "full";
    case CacheDirectory::Admitted::kFailed:
      break;
  }
  return "failed";
}

/// The right to fetch an entry, as Python holds it.
struct PythonClaim {
  CacheDirectory::ClaimPtr claim;
};

}  // namespace

void bind_cache(py::module_& m) {
  py::class_<ObjectVersions, std::shared_ptr<ObjectVersions>>(m, "ObjectVersions")
      .def(py::init<std::string>(), py::arg("common"))
      .def(py::init<const std::vector<std::pair<std::string, std::string>>&>(), py::arg("listed"))
      .def("find", &ObjectVersions::find, py::arg("key"))
      .def(py::pickle(
          [](const ObjectVersions& versions) {
            const auto [common, listed] = versions.parts();
            return py::make_tuple(common, py::bytes(listed));
          },
          [](const py::tuple& state) {
            return std::make_shared<ObjectVersions>(
                ObjectVersions::of_parts(state[0].cast<std::optional<std::string>>(), state[1].cast<std::string>()));
          }));
  py::class_<PythonClaim>(m, "CacheClaim").def("release", [](PythonClaim& mine) { mine.claim.reset(); });
  py::class_<CacheDirectory, std::shared_ptr<CacheDirectory>>(m, "CacheDirectory")
      .def(py::init([](const std::string& path, uint64_t limit) { return CacheDirectory::open(path, limit); }),
           py::arg("path"), py::arg("limit"), py::call_guard<GilRelease>())
      .def("close", &CacheDirectory::close, py::call_guard<GilRelease>())
      .def("path", &CacheDirectory::path)
      .def("limit", &CacheDirectory::limit)
      .def("trouble", &CacheDirectory::trouble)
      .def("admits", &CacheDirectory::admits)
      .def("used_bytes", &CacheDirectory::used_bytes, py::call_guard<GilRelease>())
      .def("recount", &CacheDirectory::recount, py::call_guard<GilRelease>())
      .def("clear", &CacheDirectory::clear, py::arg("store"), py::call_guard<GilRelease>());
  py::class_<CachedArray>(m, "CachedArray")
      .def(py::init([](std::shared_ptr<CacheDirectory> directory, std::string store, std::string prefix,
                       std::shared_ptr<ObjectVersions> versions) {
             return CachedArray{std::move(directory), std::move(store), std::move(prefix), std::move(versions)};
           }),
           py::arg("directory"), py::kw_only(), py::arg("store"), py::arg("prefix"), py::arg("versions"))
      .def("read", &read_entry, py::arg("key"), py::arg("begin") = 0, py::arg("end") = py::none(), py::kw_only(),
           py::arg("max_bytes"))
      .def("admit", &admit_entry, py::arg("key"), py::arg("begin"), py::arg("end"), py::arg("stored"))
      .def(
          "contains",
          [](const CachedArray& array, const std::string& key, int64_t begin, std::optional<int64_t> end) {
            const auto version = array.versions->find(key);
            return version && array.directory->contains(entry_of(array, key, *version, begin, end));
          },
          py::arg("key"), py::arg("begin") = 0, py::arg("end") = py::none())
      .def(
          "try_claim",
          [](const CachedArray& array, const std::string& key, int64_t begin,
             std::optional<int64_t> end) -> std::optional<PythonClaim> {
            auto claim = array.directory->try_claim(entry_of(array, key, "", begin, end));
            if (claim == nullptr) return std::nullopt;
            return PythonClaim{std::move(claim)};
          },
          py::arg("key"), py::arg("begin") = 0, py::arg("end") = py::none());
  m.def(
      "check_cache_entry",
      [](const std::string& path) {
        CacheEntryInfo info;
        {
          const GilRelease release;
          info = check_cache_entry(path);
        }
        return py::make_tuple(info.key.store, info.key.object, info.key.version, info.bytes);
      },
      py::arg("path"));
}

}  // namespace zarrfeed
