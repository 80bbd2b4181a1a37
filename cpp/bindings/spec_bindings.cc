// Arrays and fields as Python describes them.

#include "bindings/spec_bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "spec/array_spec.h"
#include "spec/codec_spec.h"
#include "spec/conversion_spec.h"
#include "spec/field_spec.h"
#include "spec/patch_spec.h"
#include "spec/sample_grid.h"
#include "spec/shard_spec.h"

namespace zarrfeed {
namespace {

namespace py = pybind11;

ItemType parse_item_type(const std::string& name) {
  const std::pair<const char*, ItemType> known[] = {
      {"bool", ItemType::kBool},       {"int8", ItemType::kInt8},         {"uint8", ItemType::kUint8},
      {"int16", ItemType::kInt16},     {"uint16", ItemType::kUint16},     {"int32", ItemType::kInt32},
      {"uint32", ItemType::kUint32},   {"int64", ItemType::kInt64},       {"uint64", ItemType::kUint64},
      {"float16", ItemType::kFloat16}, {"bfloat16", ItemType::kBfloat16}, {"float32", ItemType::kFloat32},
      {"float64", ItemType::kFloat64}};
  for (const auto& [known_name, type] : known) {
    if (name == known_name) return type;
  }
  throw Error(ErrorKind::kUnsupported, "items of type " + name + " cannot be converted");
}

StepKind parse_step(const std::string& name) {
  static constexpr std::pair<const char*, StepKind> kNames[] = {
      {"normalize", StepKind::kNormalize}, {"clip", StepKind::kClip},   {"fill_nan", StepKind::kFillNan},
      {"is_nan", StepKind::kIsNan},        {"log1p", StepKind::kLog1p}, {"log", StepKind::kLog},
      {"sqrt", StepKind::kSqrt},           {"exp", StepKind::kExp}};
  for (const auto& [known_name, kind] : kNames) {
    if (name == known_name) return kind;
  }
  throw Error(ErrorKind::kUnsupported, "values have no step " + name);
}

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

/// (kind, first numbers, second numbers, items of a channel).
using StepTuple = std::tuple<std::string, Doubles, Doubles, size_t>;

std::vector<double> to_vector(const Doubles& numbers) {
  return {numbers.data(), numbers.data() + numbers.size()};
}

ConversionSpec make_conversion(const std::string& items, const std::string& result, bool decode_in_double,
                               std::vector<double> fills, std::optional<double> scale, std::optional<double> offset,
                               const Doubles& mean, const Doubles& std, size_t channel_items,
                               const std::vector<StepTuple>& steps) {
  std::vector<ValueStep> made;
  if (mean.size() > 0) made.push_back({StepKind::kNormalize, to_vector(mean), to_vector(std), channel_items});
  for (const auto& [kind, first, second, items_of_channel] : steps) {
    made.push_back({parse_step(kind), to_vector(first), to_vector(second), items_of_channel});
  }
  return {.from = parse_item_type(items),
          .to = parse_item_type(result),
          .decode_in_double = decode_in_double,
          .fills = std::move(fills),
          .scale = scale,
          .offset = offset,
          .steps = std::move(made)};
}

/// Throws Error(kConfig) for axes that no array has: the engine divides by these lengths.
void check_axes(const ArraySpec& array) {
  const auto fits = [&](const auto& lengths) {
    return lengths.size() == array.shape.size() && std::ranges::all_of(lengths, [](auto n) { return n >= 1; });
  };
  const auto axes = static_cast<int>(array.shape.size());
  if (!fits(array.shape) || !fits(array.chunk_shape) || array.storage_order.size() != array.shape.size() ||
      array.sample_axis < 0 || array.sample_axis >= axes) {
    throw Error(ErrorKind::kConfig, array.name + ": shape, chunk shape, storage order and sample axis do not fit");
  }
  const auto fits_key = [&](const KeySpec::Index& index) {
    return index.axis < array.shape.size() && index.step >= 1 && index.count >= 1;
  };
  const size_t key_axes = array.key.indices.size();
  if (!std::ranges::all_of(array.key.indices, fits_key) ||
      (array.shard.is_sharded() && key_axes != 0 && key_axes != array.shard.chunks.size())) {
    throw Error(ErrorKind::kConfig, array.name + ": the indices in the names of its chunks do not fit");
  }
  for (size_t axis = 0; axis < array.chosen.size(); ++axis) {
    const auto is_item = [&](int64_t item) { return item >= 0 && item < array.shape[axis]; };
    const bool is_sample_axis = static_cast<int>(axis) == array.sample_axis;
    if (array.chosen.size() == array.shape.size() && (!is_sample_axis || array.has_all(axis)) &&
        std::ranges::all_of(array.chosen[axis], is_item)) {
      continue;
    }
    throw Error(ErrorKind::kConfig, array.name + ": the chosen items do not fit its shape");
  }
}

/// (axis of the array, step, count) of an index in the names of chunks
using KeyIndexTuple = std::tuple<size_t, int64_t, int64_t>;

ArraySpec make_array(std::string name, std::vector<int64_t> shape, std::vector<int64_t> chunk_shape,
                     std::vector<int> storage_order, int sample_axis, size_t item_bytes, size_t swap_bytes,
                     const py::bytes& fill, std::vector<CodecSpec> codecs, const py::bytes& root,
                     std::string metadata_key, std::string key_prefix, const std::string& key_separator,
                     std::optional<size_t> num_key_axes, std::optional<ShardSpec> shard, bool in_python,
                     size_t max_stored_bytes, std::shared_ptr<ArrayParts> parts,
                     std::vector<std::vector<int64_t>> chosen, const std::vector<std::shared_ptr<ChunkTable>>& tables,
                     const std::vector<KeyIndexTuple>& key_indices, bool is_transcoded) {
  const auto items = static_cast<std::string_view>(fill);
  ArraySpec array{.name = std::move(name),
                  .shape = std::move(shape),
                  .chunk_shape = std::move(chunk_shape),
                  .storage_order = std::move(storage_order),
                  .sample_axis = sample_axis,
                  .item_bytes = item_bytes,
                  .swap_bytes = swap_bytes,
                  .fill = {items.begin(), items.end()},
                  .codecs = std::move(codecs),
                  .is_transcoded = is_transcoded,
                  .root = std::string(static_cast<std::string_view>(root)),
                  .metadata_key = std::move(metadata_key),
                  .key = {std::move(key_prefix), key_separator.at(0), num_key_axes.value_or(SIZE_MAX), {}},
                  .shard = shard.value_or(ShardSpec{}),
                  .in_python = in_python,
                  .max_stored_bytes = max_stored_bytes,
                  .parts = std::move(parts),
                  .tables = {tables.begin(), tables.end()},
                  .chosen = std::move(chosen)};
  for (const auto& [axis, step, count] : key_indices) array.key.indices.push_back({axis, step, count});
  check_axes(array);
  if (array.parts != nullptr &&
      array.parts->rows_per_chunk != array.chunk_shape[static_cast<size_t>(array.sample_axis)]) {
    throw Error(ErrorKind::kConfig, array.name + ": parts have chunks of another length");
  }
  if (!tables.empty() && tables.size() != (array.parts == nullptr ? 1 : array.parts->name.size())) {
    throw Error(ErrorKind::kConfig, array.name + ": each of its parts needs a table of chunks");
  }
  return array;
}

using Int64Array = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

std::vector<int64_t> copy(const Int64Array& array) {
  return {array.data(), array.data() + array.size()};
}

std::shared_ptr<ArrayParts> make_parts(const Int64Array& begin, const Int64Array& end,
                                       const std::vector<py::bytes>& prefixes, std::vector<std::string> names,
                                       int64_t rows_per_chunk) {
  auto parts = std::make_shared<ArrayParts>();
  parts->begin = copy(begin);
  parts->end = copy(end);
  for (const py::bytes& prefix : prefixes) parts->prefix.emplace_back(static_cast<std::string_view>(prefix));
  parts->name = std::move(names);
  parts->rows_per_chunk = rows_per_chunk;
  const size_t count = parts->begin.size();
  bool fits = count > 0 && rows_per_chunk >= 1 && parts->end.size() == count && parts->prefix.size() == count &&
              parts->name.size() == count;
  for (size_t p = 0; fits && p < count; ++p) {
    fits = parts->begin[p] >= (p == 0 ? 0 : parts->end[p - 1]) && parts->end[p] > parts->begin[p];
  }
  if (!fits) throw Error(ErrorKind::kConfig, "parts of an array must ascend, and each have rows, a prefix and a name");
  parts->number_chunks();
  return parts;
}

/// (path, bytes, time of the last change)
using FileTuple = std::tuple<py::bytes, uint64_t, int64_t>;

std::shared_ptr<ChunkTable> make_table(const std::vector<FileTuple>& files, const py::bytes& in_memory,
                                       std::vector<int64_t> grid, const Int64Array& numbers, const Int64Array& offsets,
                                       const Int64Array& lengths, const std::vector<int32_t>& file_indices,
                                       uint64_t padded_bytes) {
  const auto memory = static_cast<std::string_view>(in_memory);
  auto table = std::make_shared<ChunkTable>(ChunkTable{.files = {},
                                                       .in_memory = {memory.begin(), memory.end()},
                                                       .grid = std::move(grid),
                                                       .numbers = copy(numbers),
                                                       .offsets = copy(offsets),
                                                       .lengths = copy(lengths),
                                                       .file_indices = file_indices,
                                                       .padded_bytes = padded_bytes});
  for (const auto& [path, bytes, modified_ns] : files) {
    table->files.push_back({std::string(static_cast<std::string_view>(path)), bytes, modified_ns});
  }
  if (!table->is_valid()) {
    throw Error(ErrorKind::kConfig, "a table of chunks must ascend, and its chunks lie in the file");
  }
  return table;
}

/// (number of the tensor, bytes of a row of the tensor, offset in it)
using SlotTuple = std::tuple<size_t, size_t, size_t>;

SlotSpec make_slot(const SlotTuple& slot) {
  return {std::get<0>(slot), std::get<1>(slot), std::get<2>(slot)};
}

SampleGrid make_grid(const std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>>& axes) {
  std::vector<SampleGridAxis> made;
  for (const auto& [length, chunk, chunk_step, row_step] : axes) {
    if (length < 1 || chunk < 1 || chunk_step < 0 || row_step < 0) {
      throw Error(ErrorKind::kConfig, "sample dimensions and their chunks must have a length");
    }
    made.push_back({length, chunk, chunk_step, row_step});
  }
  return SampleGrid(std::move(made));
}

SampleGrid join_grids(const std::vector<SampleGrid>& grids, const std::vector<int64_t>& first_rows) {
  if (grids.empty() || grids.size() != first_rows.size() || !std::ranges::is_sorted(first_rows) || first_rows[0] != 0) {
    throw Error(ErrorKind::kConfig, "each of several sample grids must have a first row, which ascend from 0 on");
  }
  return SampleGrid::joined(grids, first_rows);
}

/// (address of the rows or 0, their number, first, step); that of runs, whose number is behind it; or a grid
using RowsTuple = std::tuple<uintptr_t, int64_t, int64_t, int64_t>;
using RowsOfRuns = std::pair<RowsTuple, int64_t>;
using RowMapTuple = std::variant<RowsTuple, RowsOfRuns, SampleGrid>;

RowMapSpec make_row_map(const RowMapTuple& map) {
  if (const auto* grid = std::get_if<SampleGrid>(&map)) return {.grid = *grid};
  const auto* runs = std::get_if<RowsOfRuns>(&map);
  const auto& [address, num_samples, first, step] = runs == nullptr ? std::get<RowsTuple>(map) : runs->first;
  const int64_t num_runs = runs == nullptr ? 0 : runs->second;
  return {reinterpret_cast<const int64_t*>(address), num_samples, first, step, num_runs, std::nullopt};
}

/// (low, high, indices of offsets)
using LeadTuple = std::tuple<int64_t, int64_t, std::vector<size_t>>;

LeadSpec make_lead(const LeadTuple& lead, size_t num_offsets) {
  const auto& [low, high, offset_indices] = lead;
  if (low > high || std::ranges::any_of(offset_indices, [&](size_t i) { return i >= num_offsets; })) {
    throw Error(ErrorKind::kConfig, "a lead ends before it begins, or stands for no offset");
  }
  return {low, high, offset_indices};
}

/// ("edge" or "fill", the item as it stands in the batch, borders of segments)
using PadTuple = std::tuple<std::string, py::bytes, std::optional<Int64Array>>;

PadSpec make_pad(const PadTuple& pad) {
  const auto& [mode, item, borders] = pad;
  PadSpec spec;
  spec.mode = mode == "edge" ? PadSpec::Mode::kEdge : mode == "fill" ? PadSpec::Mode::kFill : PadSpec::Mode::kNone;
  const auto bytes = static_cast<std::string_view>(item);
  spec.item.assign(bytes.begin(), bytes.end());
  if (borders) {
    const std::vector<int64_t> ends = copy(*borders);
    if (!std::ranges::is_sorted(ends)) throw Error(ErrorKind::kConfig, "borders of segments must ascend");
    spec.borders = std::make_shared<const std::vector<int64_t>>(ends);
  }
  return spec;
}

/// (dimension or -1, size, origin, scale, shift, border, offsets) of each axis
using PatchAxisTuple = std::tuple<int, int64_t, int64_t, int64_t, int64_t, std::string, std::vector<int64_t>>;

Border parse_border(const std::string& name) {
  const std::pair<const char*, Border> known[] = {
      {"fill", Border::kFill}, {"edge", Border::kEdge}, {"reflect", Border::kReflect}, {"wrap", Border::kWrap}};
  for (const auto& [known_name, border] : known) {
    if (name == known_name) return border;
  }
  throw Error(ErrorKind::kConfig, "there is no border " + name);
}

/// (first chunk, begin and end of its rows) of each volume
PatchSpec make_patch(const std::vector<PatchAxisTuple>& axes, const Int64Array& volumes, const py::bytes& fill) {
  PatchSpec spec;
  for (const auto& [dim, size, origin, scale, shift, border, offsets] : axes) {
    spec.axes.push_back({dim, size, origin, scale, shift, parse_border(border), offsets});
  }
  if (volumes.ndim() != 2 || volumes.shape(1) != 3) throw Error(ErrorKind::kConfig, "volumes have three numbers each");
  for (py::ssize_t v = 0; v < volumes.shape(0); ++v) {
    spec.volumes.push_back({volumes.at(v, 0), volumes.at(v, 1), volumes.at(v, 2)});
  }
  const auto bytes = static_cast<std::string_view>(fill);
  spec.fill.assign(bytes.begin(), bytes.end());
  return spec;
}

/// (begin, end, chunk along the sample axis, key, class of the error, errno, message)
using BadRowsTuple = std::tuple<int64_t, int64_t, int64_t, std::string, std::string, int, std::string>;
/// (code of the dtype as DLPack has it, bits of an item, shape of a sample)
using TensorTuple = std::tuple<uint8_t, uint8_t, std::vector<int64_t>>;

std::optional<TensorSpec> make_tensor_spec(std::optional<TensorTuple> tensor) {
  if (!tensor) return std::nullopt;
  auto& [code, bits, sample_shape] = *tensor;
  return TensorSpec{code, bits, std::move(sample_shape)};
}

FieldSpec make_stored(ArraySpec array, std::optional<ConversionSpec> conversion, std::vector<int64_t> offsets,
                      std::optional<TensorTuple> tensor, const std::optional<SlotTuple>& slot,
                      const std::optional<RowMapTuple>& row_map, const std::optional<PadTuple>& pad, bool is_variant,
                      const std::optional<LeadTuple>& lead, std::optional<PatchSpec> patch,
                      std::optional<size_t> source) {
  FieldSpec spec;
  spec.kind = FieldSpec::Kind::kStored;
  spec.source = source;
  spec.patch = std::move(patch);
  spec.array = std::move(array);
  spec.conversion = std::move(conversion);
  spec.offsets = std::move(offsets);
  spec.tensor = make_tensor_spec(std::move(tensor));
  if (slot) spec.slot = make_slot(*slot);
  if (row_map) spec.row_map = make_row_map(*row_map);
  if (pad) spec.pad = make_pad(*pad);
  spec.is_variant = is_variant;
  if (lead) spec.lead = make_lead(*lead, spec.offsets.size());
  if (spec.patch && (!spec.offsets.empty() || spec.row_map || spec.pad.mode != PadSpec::Mode::kNone || spec.lead)) {
    throw Error(ErrorKind::kConfig, spec.array.name + ": patches have no windows, row maps or leads");
  }
  if (is_variant && (!slot || (spec.array.parts == nullptr && !spec.patch))) {
    throw Error(ErrorKind::kConfig, spec.array.name + ": a variant has parts, and a slot that others share");
  }
  return spec;
}

FieldSpec make_resident(uintptr_t address, size_t row_bytes, const std::vector<BadRowsTuple>& bad_rows,
                        std::optional<ConversionSpec> conversion, std::vector<int64_t> offsets,
                        std::optional<TensorTuple> tensor, const std::optional<SlotTuple>& slot,
                        const std::optional<RowMapTuple>& row_map, const std::optional<PadTuple>& pad, int64_t num_rows,
                        const std::optional<LeadTuple>& lead, std::optional<size_t> source) {
  FieldSpec spec;
  spec.source = source;
  if (slot) spec.slot = make_slot(*slot);
  if (row_map) spec.row_map = make_row_map(*row_map);
  if (pad) spec.pad = make_pad(*pad);
  spec.num_rows = num_rows;
  if (lead) spec.lead = make_lead(*lead, offsets.size());
  spec.kind = FieldSpec::Kind::kResident;
  spec.rows = reinterpret_cast<const uint8_t*>(address);
  spec.sample_bytes = row_bytes;
  for (const auto& [begin, end, chunk, key, name, errno_value, message] : bad_rows) {
    const bool is_io = name == error_class(ErrorKind::kIo);
    spec.bad_rows.push_back(
        {begin, end, chunk, key, is_io ? Error::io(message, errno_value) : Error(ErrorKind::kCorrupt, message)});
  }
  spec.conversion = std::move(conversion);
  spec.offsets = std::move(offsets);
  spec.tensor = make_tensor_spec(std::move(tensor));
  return spec;
}

FieldSpec make_index(std::optional<TensorTuple> tensor, std::vector<int64_t> offsets,
                     const std::optional<RowMapTuple>& row_map) {
  FieldSpec spec;
  spec.kind = FieldSpec::Kind::kIndex;
  spec.offsets = std::move(offsets);
  if (row_map) spec.row_map = make_row_map(*row_map);
  spec.num_rows = std::numeric_limits<int64_t>::max();
  spec.tensor = make_tensor_spec(std::move(tensor));
  return spec;
}

FieldSpec make_lead_field(int64_t low, int64_t high, std::optional<TensorTuple> tensor) {
  FieldSpec spec;
  spec.kind = FieldSpec::Kind::kLead;
  spec.lead = make_lead({low, high, {}}, 0);
  spec.tensor = make_tensor_spec(std::move(tensor));
  return spec;
}

FieldSpec make_pad_mask(std::vector<int64_t> offsets, const PadTuple& pad, std::optional<TensorTuple> tensor,
                        const std::optional<LeadTuple>& lead) {
  FieldSpec spec;
  if (lead) spec.lead = make_lead(*lead, offsets.size());
  spec.kind = FieldSpec::Kind::kPadMask;
  spec.offsets = std::move(offsets);
  spec.pad = make_pad(pad);
  spec.tensor = make_tensor_spec(std::move(tensor));
  return spec;
}

}  // namespace

const char* error_class(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kConfig:
      return "ConfigError";
    case ErrorKind::kBudget:
      return "MemoryBudgetError";
    case ErrorKind::kUnsupported:
      return "UnsupportedError";
    case ErrorKind::kCorrupt:
      return "CorruptChunkError";
    case ErrorKind::kIo:
      return "StoreReadError";
    case ErrorKind::kClosed:
      return "ClosedError";
  }
  return "ZarrfeedError";
}

void bind_specs(py::module_& m) {
  py::class_<ShardSpec>(m, "ShardSpec")
      .def(py::init([](std::vector<int64_t> chunks, bool at_start, bool big_endian, bool has_crc32c,
                       std::optional<size_t> cache_bytes) {
             ShardSpec spec{std::move(chunks), at_start, big_endian, has_crc32c};
             if (cache_bytes) spec.cache_bytes = *cache_bytes;
             return spec;
           }),
           py::kw_only(), py::arg("chunks"), py::arg("index_at_start"), py::arg("index_big_endian"),
           py::arg("index_has_crc32c"), py::arg("cache_bytes") = py::none());
  py::class_<ConversionSpec>(m, "ConversionSpec")
      .def(py::init(&make_conversion), py::kw_only(), py::arg("items"), py::arg("result"), py::arg("decode_in_double"),
           py::arg("fills"), py::arg("scale"), py::arg("offset"), py::arg("mean"), py::arg("std"),
           py::arg("channel_items"), py::arg("steps") = std::vector<StepTuple>());
  py::class_<ArrayParts, std::shared_ptr<ArrayParts>>(m, "ArrayParts")
      .def(py::init(&make_parts), py::kw_only(), py::arg("begin"), py::arg("end"), py::arg("prefixes"),
           py::arg("names"), py::arg("rows_per_chunk"));
  py::class_<ChunkTable, std::shared_ptr<ChunkTable>>(m, "ChunkTable")
      .def(py::init(&make_table), py::kw_only(), py::arg("files"), py::arg("in_memory"), py::arg("grid"),
           py::arg("numbers"), py::arg("offsets"), py::arg("lengths"), py::arg("file_indices"),
           py::arg("padded_bytes") = 0);
  const auto for_each = [](const Int64Array& numbers, const auto& find) {
    py::array_t<int64_t> found(numbers.size());
    for (py::ssize_t i = 0; i < numbers.size(); ++i) found.mutable_data()[i] = find(numbers.data()[i]);
    return found;
  };
  py::class_<SampleGrid>(m, "SampleGrid")
      .def(py::init(&make_grid), py::arg("axes"))
      .def_static("joined", &join_grids, py::arg("grids"), py::arg("first_rows"))
      .def(
          "rows_of",
          [for_each](const SampleGrid& grid, const Int64Array& samples) {
            return for_each(samples, [&](int64_t sample) { return grid.row_of(sample); });
          },
          py::arg("samples"))
      .def(
          "samples_of",
          [for_each](const SampleGrid& grid, const Int64Array& rows) {
            return for_each(rows, [&](int64_t row) { return grid.sample_of(row); });
          },
          py::arg("rows"));
  py::class_<ArraySpec>(m, "ArraySpec")
      .def(py::init(&make_array), py::kw_only(), py::arg("name"), py::arg("shape"), py::arg("chunk_shape"),
           py::arg("storage_order"), py::arg("sample_axis"), py::arg("item_bytes"), py::arg("swap_bytes"),
           py::arg("fill"), py::arg("codecs"), py::arg("root"), py::arg("metadata_key"), py::arg("key_prefix"),
           py::arg("key_separator"), py::arg("num_key_axes") = py::none(), py::arg("shard") = py::none(),
           py::arg("in_python") = false, py::arg("max_stored_bytes") = 0,
           py::arg("parts") = std::shared_ptr<ArrayParts>{}, py::arg("chosen") = std::vector<std::vector<int64_t>>{},
           py::arg("tables") = std::vector<std::shared_ptr<ChunkTable>>{},
           py::arg("key_indices") = std::vector<KeyIndexTuple>{}, py::arg("is_transcoded") = false);
  py::class_<PatchSpec>(m, "PatchSpec")
      .def(py::init(&make_patch), py::kw_only(), py::arg("axes"), py::arg("volumes"), py::arg("fill") = py::bytes());
  py::class_<FieldSpec>(m, "FieldSpec")
      .def_static("stored", &make_stored, py::arg("array"), py::kw_only(), py::arg("conversion") = py::none(),
                  py::arg("offsets") = std::vector<int64_t>{}, py::arg("tensor") = py::none(),
                  py::arg("slot") = py::none(), py::arg("row_map") = py::none(), py::arg("pad") = py::none(),
                  py::arg("is_variant") = false, py::arg("lead") = py::none(), py::arg("patch") = py::none(),
                  py::arg("source") = py::none())
      .def_static("resident", &make_resident, py::arg("address"), py::kw_only(), py::arg("row_bytes"),
                  py::arg("bad_rows") = std::vector<BadRowsTuple>{}, py::arg("conversion") = py::none(),
                  py::arg("offsets") = std::vector<int64_t>{}, py::arg("tensor") = py::none(),
                  py::arg("slot") = py::none(), py::arg("row_map") = py::none(), py::arg("pad") = py::none(),
                  py::arg("num_rows") = 0, py::arg("lead") = py::none(), py::arg("source") = py::none())
      .def_static("pad_mask", &make_pad_mask, py::kw_only(), py::arg("offsets"), py::arg("pad"),
                  py::arg("tensor") = py::none(), py::arg("lead") = py::none())
      .def_static("lead", &make_lead_field, py::kw_only(), py::arg("low"), py::arg("high"),
                  py::arg("tensor") = py::none())
      .def_static("index", &make_index, py::kw_only(), py::arg("tensor") = py::none(),
                  py::arg("offsets") = std::vector<int64_t>{}, py::arg("row_map") = py::none());
}

}  // namespace zarrfeed
