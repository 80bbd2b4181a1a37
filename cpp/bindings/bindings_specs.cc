// What Python describes in dicts, as the engine's own types. Holds no logic but that.

#include "bindings/bindings_specs.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <tuple>
#include <utility>

#include "base/error.h"
#include "spec/array_spec.h"
#include "spec/codec_spec.h"
#include "spec/conversion_spec.h"

namespace zarrfeed {
namespace {

namespace py = pybind11;

using Int64Array = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

CodecSpec parse_codec(const py::dict& codec) {
  const auto name = codec["name"].cast<std::string>();
  const std::pair<const char*, CodecSpec::Kind> known[] = {
      {"blosc", CodecSpec::Kind::kBlosc}, {"zstd", CodecSpec::Kind::kZstd}, {"gzip", CodecSpec::Kind::kGzip},
      {"zlib", CodecSpec::Kind::kZlib},   {"lz4", CodecSpec::Kind::kLz4},   {"crc32c", CodecSpec::Kind::kCrc32c}};
  for (const auto& [known_name, kind] : known) {
    if (name == known_name) return {kind, codec.contains("at_start") && codec["at_start"].cast<bool>()};
  }
  throw Error(ErrorKind::kUnsupported, "codec " + name);
}

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

ConversionSpec parse_conversion(const py::dict& dict) {
  ConversionSpec spec;
  spec.from = parse_item_type(dict["from"].cast<std::string>());
  spec.to = parse_item_type(dict["to"].cast<std::string>());
  spec.decode_in_double = dict["decode_in_double"].cast<bool>();
  spec.fills = dict["fills"].cast<std::vector<double>>();
  spec.scale = dict["scale"].cast<std::optional<double>>();
  spec.offset = dict["offset"].cast<std::optional<double>>();
  spec.mean = dict["mean"].cast<std::vector<double>>();
  spec.std = dict["std"].cast<std::vector<double>>();
  spec.channel_items = dict["channel_items"].cast<size_t>();
  return spec;
}

TensorSpec parse_tensor(const py::dict& tensor) {
  return {tensor["code"].cast<uint8_t>(), tensor["bits"].cast<uint8_t>(),
          tensor["sample_shape"].cast<std::vector<int64_t>>()};
}

/// [(begin, end, chunk along the sample axis, key, class of the error, errno, message)]
std::vector<BadRows> parse_bad_rows(const py::list& list) {
  std::vector<BadRows> all;
  for (const py::handle item : list) {
    const auto [begin, end, chunk, key, name, errno_value, message] =
        item.cast<std::tuple<int64_t, int64_t, int64_t, std::string, std::string, int, std::string>>();
    const bool is_io = name == error_class(ErrorKind::kIo);
    all.push_back(
        {begin, end, chunk, key, is_io ? Error::io(message, errno_value) : Error(ErrorKind::kCorrupt, message)});
  }
  return all;
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

ShardSpec parse_shard(const py::dict& shard) {
  ShardSpec spec;
  spec.chunks = shard["chunks"].cast<std::vector<int64_t>>();
  spec.index_at_start = shard["index_at_start"].cast<bool>();
  spec.index_big_endian = shard["index_big_endian"].cast<bool>();
  spec.index_has_crc32c = shard["index_has_crc32c"].cast<bool>();
  if (shard.contains("cache_bytes")) spec.cache_bytes = shard["cache_bytes"].cast<size_t>();
  return spec;
}

FieldSpec parse_field(const py::dict& field) {
  FieldSpec spec;
  if (field.contains("conversion")) spec.conversion = parse_conversion(field["conversion"].cast<py::dict>());
  if (field.contains("offsets")) spec.offsets = field["offsets"].cast<std::vector<int64_t>>();
  if (field.contains("tensor")) spec.tensor = parse_tensor(field["tensor"].cast<py::dict>());
  const auto kind = field["kind"].cast<std::string>();
  if (kind == "index") {
    spec.kind = FieldSpec::Kind::kIndex;
    return spec;
  }
  if (kind == "resident") {
    spec.kind = FieldSpec::Kind::kResident;
    spec.rows = reinterpret_cast<const uint8_t*>(field["address"].cast<uintptr_t>());
    spec.sample_bytes = field["sample_bytes"].cast<size_t>();
    if (field.contains("bad_rows")) spec.bad_rows = parse_bad_rows(field["bad_rows"].cast<py::list>());
    return spec;
  }
  ArraySpec& array = spec.array;
  array.name = field["name"].cast<std::string>();
  array.shape = field["shape"].cast<std::vector<int64_t>>();
  array.chunk_shape = field["chunk_shape"].cast<std::vector<int64_t>>();
  array.storage_order = field["storage_order"].cast<std::vector<int>>();
  array.sample_axis = field["sample_axis"].cast<int>();
  array.item_bytes = field["item_bytes"].cast<size_t>();
  array.swap_bytes = field["swap_bytes"].cast<size_t>();
  const auto fill = field["fill"].cast<std::string>();
  array.fill.assign(fill.begin(), fill.end());
  for (const py::handle codec : field["codecs"]) array.codecs.push_back(parse_codec(codec.cast<py::dict>()));
  array.root = field["root"].cast<std::string>();
  array.metadata_key = field["metadata_key"].cast<std::string>();
  array.key.prefix = field["key_prefix"].cast<std::string>();
  array.key.separator = field["key_separator"].cast<std::string>().at(0);
  if (field.contains("key_axes")) array.key.axes = field["key_axes"].cast<size_t>();
  if (field.contains("shard")) {
    array.shard = parse_shard(field["shard"].cast<py::dict>());
  }
  array.fed = field.contains("fed") && field["fed"].cast<bool>();
  return spec;
}

std::unique_ptr<OwnedPlan> parse_plan(const py::dict& dict) {
  auto owned = std::make_unique<OwnedPlan>();
  EpochPlan& plan = owned->plan;
  plan.seed = dict["seed"].cast<uint64_t>();
  plan.epoch = dict["epoch"].cast<uint64_t>();
  plan.shuffle = dict["shuffle"].cast<bool>();
  plan.lanes = dict["lanes"].cast<int64_t>();
  plan.length = dict["length"].cast<int64_t>();
  plan.num_samples = dict["num_samples"].cast<int64_t>();
  plan.sample_step = dict["sample_step"].cast<int64_t>();
  plan.first = dict["first"].cast<int64_t>();
  plan.stride = dict["stride"].cast<int64_t>();
  plan.begin = dict["begin"].cast<int64_t>();
  plan.count = dict["count"].cast<int64_t>();
  plan.steps = dict["steps"].cast<int64_t>();
  const auto copy = [&dict](const char* name, std::vector<int64_t>& out) {
    const auto array = dict[name].cast<Int64Array>();
    out.assign(array.data(), array.data() + array.size());
  };
  copy("group_begin", owned->group_begin);
  copy("group_lane", owned->group_lane);
  copy("group_offset", owned->group_offset);
  copy("group_number", owned->group_number);
  copy("group_turn", owned->group_turn);
  copy("extra_position", owned->extra_position);
  copy("extra_step", owned->extra_step);
  copy("first_step", owned->first_step);
  copy("last_step", owned->last_step);
  copy("selected", owned->selected);
  copy("segment_block", owned->segment_block);
  copy("segment_first", owned->segment_first);
  copy("segment_rows", owned->segment_rows);
  copy("segment_start", owned->segment_start);
  copy("segment_length", owned->segment_length);
  if (dict.contains("carry_begin")) {
    copy("next_group", owned->next_group);
    copy("carry_begin", owned->carry_begin);
    copy("carry_field", owned->carry_field);
    copy("carry_chunk", owned->carry_chunk);
    copy("carry_on", owned->carry_on);
  }
  owned->bind();
  return owned;
}

}  // namespace zarrfeed
