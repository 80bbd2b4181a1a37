// The node cache, as Python makes it for the engine and looks at it. Part of the bindings.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/gil_release.h"
#include "bindings/spec_bindings.h"
#include "storage/cache/cache_directory.h"
#include "storage/cache/cache_entry.h"
#include "storage/cache/object_versions.h"
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
  PartsRead read;
  auto found = CacheDirectory::Found::kMiss;
  {
    const GilRelease release;
    found = array.directory->read(entry_of(array, key, *version, begin, end), room, max_bytes, true, read);
  }
  if (found == CacheDirectory::Found::kDamaged) return py::bool_(false);
  if (found != CacheDirectory::Found::kHit) return py::none();
  return py::bytes(reinterpret_cast<const char*>(read.bytes.data()), read.bytes.size());
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

/// Key below the array, first byte and end, whether it is of the version that the object has now, bytes that count.
using ListedEntry = std::tuple<std::string, int64_t, std::optional<int64_t>, bool, uint64_t>;

std::pair<std::vector<ListedEntry>, double> list_entries(const CachedArray& array, size_t most) {
  const auto listing = array.directory->list(array.store, array.prefix, most);
  std::vector<ListedEntry> listed;
  listed.reserve(listing.entries.size());
  for (const auto& [info, counted] : listing.entries) {
    const ByteRange& range = info.key.range;
    const auto size = static_cast<int64_t>(range.size);
    const bool is_part = range.kind == ByteRange::Kind::kAt;
    const int64_t begin = is_part                                ? static_cast<int64_t>(range.offset)
                          : range.kind == ByteRange::Kind::kLast ? -size
                                                                 : 0;
    std::string key = info.key.object.substr(array.prefix.size());
    const size_t before_form = key.find(kBeforeForm);
    const bool has_form = before_form != std::string::npos;
    const bool is_index = range.kind == ByteRange::Kind::kLast;
    if (has_form ? key.substr(before_form + 1) != array.form : !array.form.empty() && !is_index) continue;
    key.resize(std::min(key.size(), before_form));
    const bool is_current = array.versions->find(key) == info.key.version;
    listed.emplace_back(std::move(key), begin, is_part ? std::optional(begin + size) : std::nullopt, is_current,
                        counted);
  }
  return {std::move(listed), listing.share};
}

/// Bytes that an entry counts against the limit.
uint64_t counted_bytes(const CachedArray& array, const std::string& key, int64_t begin, std::optional<int64_t> end,
                       size_t payload) {
  const std::string usual(16, '0');  // of a version that was listed
  const CacheEntry entry = entry_of(array, key, array.versions->find(key).value_or(usual), begin, end);
  return CacheDirectory::counted_bytes(CacheEntryFile::size_of(entry, payload));
}

/// Path below the directory and size of each file of an entry.
std::vector<std::pair<std::string, uint64_t>> list_files(const CacheDirectory& directory) {
  std::vector<CacheDirectory::StoredFile> files;
  {
    const GilRelease release;
    files = directory.files();
  }
  std::vector<std::pair<std::string, uint64_t>> listed;
  listed.reserve(files.size());
  for (CacheDirectory::StoredFile& file : files) listed.emplace_back(std::move(file.path), file.bytes);
  return listed;
}

/// Store and object of an entry.
std::optional<std::pair<std::string, std::string>> read_info(const CacheDirectory& directory, const std::string& path) {
  const GilRelease release;
  const auto info = directory.read_info(path);
  if (!info) return std::nullopt;
  return std::pair(info->key.store, info->key.object);
}

/// Bytes of the payload of an entry.
std::optional<uint64_t> check_file(const CacheDirectory& directory, const std::string& path) {
  const GilRelease release;
  const auto info = directory.check(path);
  return info ? std::optional(info->bytes) : std::nullopt;
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
      .def(
          "agrees",
          [](const ObjectVersions& versions, const std::string& key, uint64_t inode, int64_t time_ns, uint64_t size) {
            return versions.agrees(key, {.inode = inode, .nanoseconds = time_ns, .size = size});
          },
          py::arg("key"), py::kw_only(), py::arg("inode"), py::arg("time_ns"), py::arg("size"))
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
      .def(py::init([](const std::string& path, uint64_t limit, std::optional<gid_t> group) {
             return CacheDirectory::open(path, limit, group);
           }),
           py::arg("path"), py::arg("limit"), py::arg("group") = py::none(), py::call_guard<GilRelease>())
      .def("close", &CacheDirectory::close, py::call_guard<GilRelease>())
      .def("path", &CacheDirectory::path)
      .def("limit", &CacheDirectory::limit)
      .def("trouble", &CacheDirectory::trouble)
      .def("notice", &CacheDirectory::notice)
      .def("admits", &CacheDirectory::admits)
      .def("is_writable", &CacheDirectory::is_writable)
      .def("used_bytes", &CacheDirectory::used_bytes, py::call_guard<GilRelease>())
      .def("recount", &CacheDirectory::recount, py::call_guard<GilRelease>())
      .def("clear", &CacheDirectory::clear, py::arg("store"), py::call_guard<GilRelease>())
      .def("files", &list_files)
      .def(
          "store_name",
          [](const CacheDirectory& directory, const std::string& folder) {
            return py::bytes(directory.store_name(folder));
          },
          py::arg("folder"))
      .def("read_info", &read_info, py::arg("path"))
      .def("check", &check_file, py::arg("path"))
      .def("remove", &CacheDirectory::remove, py::arg("path"), py::call_guard<GilRelease>());
  py::class_<CachedArray>(m, "CachedArray")
      .def(py::init([](std::shared_ptr<CacheDirectory> directory, std::string store, std::string prefix,
                       std::shared_ptr<ObjectVersions> versions, std::string form) {
             return CachedArray{std::move(directory), std::move(store), std::move(prefix), std::move(versions),
                                std::move(form)};
           }),
           py::arg("directory"), py::kw_only(), py::arg("store"), py::arg("prefix"), py::arg("versions"),
           py::arg("form") = "")
      .def_readonly("form", &CachedArray::form)
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
      .def("entries", &list_entries, py::arg("most"), py::call_guard<GilRelease>())
      .def("counted_bytes", &counted_bytes, py::arg("key"), py::arg("begin"), py::arg("end"), py::arg("payload"))
      .def(
          "try_claim",
          [](const CachedArray& array, const std::string& key, int64_t begin,
             std::optional<int64_t> end) -> std::optional<PythonClaim> {
            auto claim = array.directory->try_claim(entry_of(array, key, "", begin, end));
            if (claim == nullptr) return std::nullopt;
            return PythonClaim{std::move(claim)};
          },
          py::arg("key"), py::arg("begin") = 0, py::arg("end") = py::none());
}

}  // namespace zarrfeed
