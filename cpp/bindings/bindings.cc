// The translation between Python and the engine: arguments, results and errors. It holds no logic of its own.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "bindings/gil_release.h"
#include "bindings/spec_bindings.h"
#include "bindings/tensor_capsule.h"
#include "engine/dlpack.h"
#include "engine/engine.h"
#include "plan/unfolding.h"
#include "spec/field_spec.h"
#include "storage/access/retry.h"
#include "storage/shard_index.h"
#include "tools/ceiling.h"
#include "tools/chunk_checker.h"
#include "tools/library_ceiling.h"
#include "tools/patch_ceiling.h"
#include "transform/patches/copy_runs.h"

namespace py = pybind11;

namespace zarrfeed {
namespace {

/// The longest wait before signals are looked at.
constexpr std::chrono::milliseconds kSignalInterval{50};

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const py::object type = py::module_::import("zarrfeed.base.errors").attr(error_class(error.kind()));
    const py::object value =
        error.kind() == ErrorKind::kIo ? type(error.errno_value(), error.what()) : type(error.what());
    PyErr_SetObject(type.ptr(), value.ptr());
  }
}

/// The begins of patches: their volume, and an index along each dimension, shape (patches, 1 + dimensions).
std::vector<PatchStart> patch_starts(const py::array_t<int64_t, py::array::c_style>& starts) {
  if (starts.ndim() != 2 || starts.shape(1) < 1 || starts.shape(1) > 1 + py::ssize_t{kMaxPatchDims}) {
    throw Error(ErrorKind::kConfig, "starts: must have the shape (patches, 1 + dimensions)");
  }
  std::vector<PatchStart> patches(static_cast<size_t>(starts.shape(0)));
  for (py::ssize_t p = 0; p < starts.shape(0); ++p) {
    PatchStart& patch = patches[static_cast<size_t>(p)];
    patch.volume = starts.at(p, 0);
    for (py::ssize_t d = 1; d < starts.shape(1); ++d) patch.at[static_cast<size_t>(d - 1)] = starts.at(p, d);
  }
  return patches;
}

/// A DLPack capsule over a buffer of the engine; the buffer goes back to its pool when the tensor is dropped.
py::object borrow(const Engine& engine, size_t tensor_number, uint8_t* buffer, int64_t rows) {
  const Output& reader = engine.output_of_tensor(tensor_number);
  const auto& spec = reader.spec().tensor;
  const TensorSpec bytes{.sample_shape = {static_cast<int64_t>(spec ? 0 : reader.sample_bytes())}};
  return tensor_capsule(make_tensor(engine.memory(tensor_number), buffer, rows, spec ? *spec : bytes));
}

/// The message of an error; it may hold bytes of a path, in no encoding.
py::str message_of(const Error& error) {
  const std::string_view what = error.what();
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(what.data(), static_cast<py::ssize_t>(what.size()), "backslashreplace"));
}

/// ([slot], [its sample], [(source, chunk along the sample axis, key, class of the error, errno, message)])
py::tuple skipped_tuple(const Skipped& skipped) {
  py::list slots;
  py::list samples;
  for (const SkippedSlot& one : skipped.slots) {
    slots.append(one.slot);
    samples.append(one.sample);
  }
  py::list chunks;
  for (const SkippedChunk& c : skipped.chunks) {
    chunks.append(py::make_tuple(c.source, c.chunk, c.key, error_class(c.error.kind()), c.error.errno_value(),
                                 message_of(c.error)));
  }
  return py::make_tuple(slots, samples, chunks);
}

/// (rows, one DLPack capsule a field, or its address if it was lent, None or what is not in the batch), or None at the
/// end of the epoch.
py::object next_batch(Engine& engine) {
  ReadyBatch batch;
  NextStatus status = engine.take_ready(batch) ? NextStatus::kBatch : NextStatus::kTimeout;
  while (status == NextStatus::kTimeout) {
    {
      const GilRelease release;
      status = engine.next(batch, kSignalInterval);
    }
    if (status == NextStatus::kTimeout && PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  if (status == NextStatus::kEnd) return py::none();
  py::tuple out(batch.buffers.size());
  for (size_t f = 0; f < batch.buffers.size(); ++f) {
    if (engine.uses_provided_memory()) {
      out[f] = reinterpret_cast<uintptr_t>(batch.buffers[f]);
    } else {
      out[f] = borrow(engine, f, batch.buffers[f], batch.rows);
    }
  }
  py::object skipped = py::none();
  if (!batch.skipped.slots.empty()) skipped = skipped_tuple(batch.skipped);
  return py::make_tuple(batch.rows, std::move(out), std::move(skipped));
}

StoreBridge& bridge_of(Engine& engine) {
  StoreBridge* const bridge = engine.stores().bridge();
  if (bridge == nullptr) throw Error(ErrorKind::kConfig, "no field of this engine is fed");
  return *bridge;
}

/// First byte and end of a range, as in a slice: (0, None) is the whole object, (-n, None) are its last n bytes.
py::tuple slice_of(const ByteRange& range) {
  if (range.kind == ByteRange::Kind::kAll) return py::make_tuple(0, py::none());
  if (range.kind == ByteRange::Kind::kLast) return py::make_tuple(-static_cast<int64_t>(range.size), py::none());
  return py::make_tuple(range.offset, range.offset + range.size);
}

/// (source, key, whether it is the index of a shard, [(request id, first byte, end)])
py::tuple request_tuple(const FetchRequest& request) {
  py::list parts;
  for (const FetchPart& part : request.parts) {
    parts.append(py::make_tuple(part.request_id) + slice_of(part.range));
  }
  return py::make_tuple(request.source, request.key, request.is_index, std::move(parts));
}

/// ([requests], [ids of requests whose bytes are no longer needed]); never waits.
py::tuple take_requests(Engine& engine) {
  std::vector<FetchRequest> requests;
  std::vector<uint64_t> finished;
  {
    const GilRelease release;
    bridge_of(engine).take(requests, finished);
  }
  py::list wanted;
  for (const FetchRequest& request : requests) wanted.append(request_tuple(request));
  return py::make_tuple(wanted, finished);
}

std::vector<FetchAnswer> answers_of(const py::list& pairs) {
  std::vector<FetchAnswer> answers;
  answers.reserve(pairs.size());
  for (const py::handle item : pairs) {
    const auto pair = item.cast<py::tuple>();
    FetchAnswer& one = answers.emplace_back();
    one.request_id = pair[0].cast<uint64_t>();
    if (pair[1].is_none()) continue;
    const py::buffer_info info = pair[1].cast<py::buffer>().request();
    if (info.itemsize != 1 || info.ndim != 1 || (info.size > 1 && info.strides[0] != 1)) {
      throw Error(ErrorKind::kConfig, "an answer must be a contiguous buffer of bytes");
    }
    one.bytes = Bytes{static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size)};
  }
  return answers;
}

/// Hands over answers: (request id, contiguous buffer of bytes or None for a missing object). The caller keeps each buffer
/// alive and unchanged until its request is finished, or stop() has returned.
void answer(Engine& engine, const py::list& pairs) {
  const std::vector<FetchAnswer> answers = answers_of(pairs);
  const GilRelease release;
  bridge_of(engine).answer(answers);
}

/// Hands over answers, as answer() does, and waits for the next request of the epoch: (the request, ids of requests whose
/// bytes are no longer needed, requests that nobody has taken yet), or None when the epoch is over.
py::object exchange(Engine& engine, uint64_t epoch, const py::list& pairs) {
  const std::vector<FetchAnswer> answers = answers_of(pairs);
  std::optional<TakenRequest> taken;
  {
    const GilRelease release;
    if (!answers.empty()) bridge_of(engine).answer(answers);
    taken = bridge_of(engine).take_one(epoch);
  }
  if (!taken) return py::none();
  return py::make_tuple(request_tuple(taken->request), taken->finished, taken->waiting);
}

py::dict stats_dict(Engine& engine) {
  const Stats& s = engine.stats();
  py::dict d;
  const std::pair<const char*, const std::atomic<uint64_t>*> counters[] = {{"chunks_read", &s.chunks_read},
                                                                           {"chunks_missing", &s.chunks_missing},
                                                                           {"chunks_waited", &s.chunks_waited},
                                                                           {"retries", &s.retries},
                                                                           {"bytes_read", &s.bytes_read},
                                                                           {"stored_bytes", &s.stored_bytes},
                                                                           {"chunk_bytes", &s.chunk_bytes},
                                                                           {"bytes_decoded", &s.bytes_decoded},
                                                                           {"bytes_scattered", &s.bytes_scattered},
                                                                           {"batches", &s.batches},
                                                                           {"samples", &s.samples},
                                                                           {"fetch_ns", &s.fetch_ns},
                                                                           {"decode_ns", &s.decode_ns},
                                                                           {"scatter_ns", &s.scatter_ns},
                                                                           {"order_ns", &s.order_ns},
                                                                           {"idle_storage_ns", &s.idle_storage_ns},
                                                                           {"idle_memory_ns", &s.idle_memory_ns},
                                                                           {"idle_other_ns", &s.idle_other_ns},
                                                                           {"consumer_wait_ns", &s.consumer_wait_ns},
                                                                           {"consumer_busy_ns", &s.consumer_busy_ns}};
  for (const auto& [name, value] : counters) d[name] = value->load(std::memory_order_relaxed);
  const CacheCounters& c = *engine.stores().cache_counters();
  const std::pair<const char*, const std::atomic<uint64_t>*> of_cache[] = {
      {"cache_hits", &c.hits},
      {"cache_misses", &c.misses},
      {"cache_hit_bytes", &c.hit_bytes},
      {"cache_miss_bytes", &c.miss_bytes},
      {"cache_unversioned", &c.unversioned},
      {"cache_damaged", &c.damaged},
      {"cache_written_bytes", &c.written_bytes},
      {"cache_refused", &c.refused},
      {"cache_transcoded", &c.transcoded},
      {"cache_transcoded_bytes", &c.transcoded_bytes},
      {"cache_transcoded_hits", &c.transcoded_hits}};
  for (const auto& [name, value] : of_cache) d[name] = value->load(std::memory_order_relaxed);
  uint64_t mapped = 0;
  for (size_t t = 0; t < engine.num_tensors(); ++t) mapped += engine.memory(t)->mapped_bytes();
  d["batch_memory_bytes"] = mapped;
  d["indices_read"] = engine.indices_read();
  d["scratch_bytes"] = engine.scratch_bytes();
  return d;
}

/// (good chunks, stored bytes, decoded bytes, [(number, chunks, key, grid index in the shard, error or None)])
py::tuple check_chunks(ChunkChecker& checker, int64_t begin, int64_t end) {
  ChunkCheck check;
  {
    const GilRelease release;
    check = checker.check(begin, end);
  }
  py::list findings;
  for (const ChunkFinding& f : check.findings) {
    py::object bad = py::none();
    if (f.bad) bad = py::make_tuple(error_class(f.bad->kind()), message_of(*f.bad));
    findings.append(py::make_tuple(f.number, f.chunks, f.key, f.inner, bad));
  }
  return py::make_tuple(check.good, check.stored_bytes, check.decoded_bytes, findings);
}

EngineOptions make_options(int64_t batch_size, size_t num_threads, size_t num_fetch_threads, size_t max_requests,
                           size_t coalesce_gap, size_t coalesce_limit, bool provides_memory, size_t cache_bytes,
                           size_t carry_bytes, bool caller_runs, size_t max_block_bytes, size_t max_retries,
                           double timeout_s, bool missing_is_error, bool skip_bad) {
  return {.num_threads = num_threads,
          .num_fetch_threads = num_fetch_threads,
          .max_requests = max_requests,
          .coalesce = {coalesce_gap, coalesce_limit},
          .batch_size = batch_size,
          .provided_memory = provides_memory,
          .cache_bytes = cache_bytes,
          .carry_bytes = carry_bytes,
          .caller_runs = caller_runs,
          .max_block_bytes = max_block_bytes,
          .max_retries = max_retries,
          .timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3)),
          .missing_is_error = missing_is_error,
          .skip_bad = skip_bad};
}

/// A forked child must not destroy an engine whose threads exist only in the parent: it leaks it instead.
struct EngineDeleter {
  void operator()(Engine* engine) const {
    if (engine->is_owner() || !engine->is_running()) delete engine;
  }
};

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The engine of zarrfeed. Private: use zarrfeed.ZarrIterableDataset.";
  py::register_exception_translator(translate);

  bind_codecs(m);
  bind_specs(m);
  bind_converter(m);
  bind_blocks(m);
  bind_plans(m);
  bind_cache(m);
  bind_shared_pool(m);
  py::class_<EngineOptions>(m, "EngineOptions")
      .def(py::init(&make_options), py::kw_only(), py::arg("batch_size"), py::arg("num_threads"),
           py::arg("num_fetch_threads"), py::arg("max_requests") = 1, py::arg("coalesce_gap") = 0,
           py::arg("coalesce_limit") = 0, py::arg("provides_memory") = false, py::arg("cache_bytes") = 0,
           py::arg("carry_bytes") = 0, py::arg("caller_runs") = false,
           py::arg("max_block_bytes") = std::numeric_limits<size_t>::max(), py::arg("max_retries") = 0,
           py::arg("timeout_s") = 3600.0, py::arg("missing_is_error") = false, py::arg("skip_bad") = false);
  py::class_<Engine, std::unique_ptr<Engine, EngineDeleter>>(m, "Engine")
      .def(py::init([](std::vector<FieldSpec> fields, const EngineOptions& options,
                       const std::map<size_t, CachedArray>& cached) {
             auto stores = std::make_shared<Stores>(options.num_fetch_threads, options.max_requests, options.coalesce);
             for (const auto& [source, array] : cached) stores->cache(source, array);
             return std::unique_ptr<Engine, EngineDeleter>(new Engine(std::move(fields), options, std::move(stores)));
           }),
           py::arg("fields"), py::arg("options"), py::arg("cached") = py::dict())
      .def(
          "start",
          [](Engine& engine, const PythonPlan& plan, int64_t max_open_batches, bool short_of_memory,
             size_t keep_bytes) {
            auto owned = plan.owned;
            const GilRelease release;
            engine.start(std::move(owned), max_open_batches, short_of_memory, keep_bytes);
          },
          py::arg("plan"), py::arg("max_open_batches"), py::kw_only(), py::arg("short_of_memory") = false,
          py::arg("keep_bytes") = 0)
      .def("next", &next_batch)
      .def("stop", &Engine::stop, py::call_guard<GilRelease>())
      .def(
          "provide_buffers",
          [](Engine& engine, const std::vector<uintptr_t>& addresses) {
            std::vector<uint8_t*> buffers;
            for (const uintptr_t address : addresses) buffers.push_back(reinterpret_cast<uint8_t*>(address));
            const GilRelease release;
            engine.provide_buffers(buffers);
          },
          py::arg("addresses"))
      .def("request_descriptor", [](Engine& engine) { return bridge_of(engine).descriptor(); })
      .def("take_requests", &take_requests)
      .def("answer", &answer, py::arg("answers"))
      .def("request_epoch", [](Engine& engine) { return bridge_of(engine).epoch(); })
      .def("exchange", &exchange, py::arg("epoch"), py::arg("answers"))
      .def(
          "refuse",
          [](Engine& engine, uint64_t request_id, const std::string& what, int errno_value) {
            bridge_of(engine).refuse(request_id, Error::io(what, errno_value));
          },
          py::arg("request_id"), py::arg("what"), py::arg("errno_value"), py::call_guard<GilRelease>())
      .def(
          "refuse_corrupt",
          [](Engine& engine, uint64_t request_id, const std::string& what) {
            bridge_of(engine).refuse(request_id, Error(ErrorKind::kCorrupt, what));
          },
          py::arg("request_id"), py::arg("what"), py::call_guard<GilRelease>())
      .def("stats", &stats_dict);

  py::class_<ChunkChecker>(m, "ChunkChecker")
      .def(py::init([](const ArraySpec& array, size_t max_retries, double timeout_s) {
             const ReadPolicy policy{max_retries, std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3))};
             return std::make_unique<ChunkChecker>(array, policy);
           }),
           py::arg("array"), py::kw_only(), py::arg("max_retries") = 0, py::arg("timeout_s") = 3600.0)
      .def("num_numbers", &ChunkChecker::num_numbers)
      .def("check", &check_chunks, py::arg("begin"), py::arg("end"))
      .def(
          "check_bytes",
          [](ChunkChecker& checker, const py::buffer& stored) {
            const py::buffer_info info = stored.request();
            const Bytes bytes{static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size)};
            const GilRelease release;
            checker.check_bytes(bytes);
          },
          py::arg("stored"));

  m.def("is_transient", &is_transient, py::arg("errno_value"));
  m.def("is_of_chunk", py::overload_cast<int>(&is_of_chunk), py::arg("errno_value"));
  m.def(
      "pause_after", [](size_t tries) { return std::chrono::duration<double>(pause_after(tries)).count(); },
      py::arg("tries"));
  m.def(
      "required_open_batches",
      [](const PythonPlan& plan, int64_t batch_size) {
        const auto owned = plan.owned;
        const GilRelease release;
        return owned->block_order == nullptr ? Engine::required_open_batches(owned->plan, batch_size)
                                             : Admission::required_unfolded(owned, batch_size);
      },
      py::arg("plan"), py::arg("batch_size"));
  m.def(
      "sample_order",
      [](const PythonPlan& plan) {
        const auto owned = plan.owned;
        py::array_t<int64_t> out(owned->plan.steps);
        const std::span<int64_t> view(out.mutable_data(), static_cast<size_t>(owned->plan.steps));
        const GilRelease release;
        if (owned->block_order == nullptr) {
          list_order(owned->plan, view);
        } else {
          list_unfolded(owned, view);
        }
        return out;
      },
      py::arg("plan"));
  m.def(
      "copy_runs",
      [](const py::buffer& source, const py::array_t<int64_t, py::array::c_style>& begin,
         const py::array_t<int64_t, py::array::c_style>& count, size_t item_bytes, const py::buffer& out) {
        const py::buffer_info from = source.request();
        const py::buffer_info to = out.request(true);
        const auto size_of = [](const py::buffer_info& info) { return static_cast<size_t>(info.size * info.itemsize); };
        const std::span<const uint8_t> items{static_cast<const uint8_t*>(from.ptr), size_of(from)};
        const std::span<uint8_t> room{static_cast<uint8_t*>(to.ptr), size_of(to)};
        const std::span<const int64_t> begins{begin.data(), static_cast<size_t>(begin.size())};
        const std::span<const int64_t> counts{count.data(), static_cast<size_t>(count.size())};
        const GilRelease release;
        return copy_runs(items, begins, counts, item_bytes, room);
      },
      py::arg("source"), py::arg("begin"), py::arg("count"), py::kw_only(), py::arg("item_bytes"), py::arg("out"));
  m.def(
      "runs_together",
      [](const std::vector<std::pair<uint64_t, uint64_t>>& extents, size_t gap, size_t limit) {
        std::vector<Extent> all;
        for (const auto& [begin, end] : extents) all.push_back({begin, end});
        return runs_together(all, {gap, limit});
      },
      py::arg("extents"), py::kw_only(), py::arg("gap"), py::arg("limit"));
  m.def(
      "parse_shard_index",
      [](const ShardSpec& shard, const py::buffer& stored) {
        const py::buffer_info info = stored.request();
        const ShardIndex index(shard, {static_cast<const uint8_t*>(info.ptr), static_cast<size_t>(info.size)},
                               std::nullopt);
        const auto n = static_cast<py::ssize_t>(index.num_chunks());
        py::array_t<int64_t> out({n, py::ssize_t{2}});
        auto ranges = out.mutable_unchecked<2>();
        for (py::ssize_t i = 0; i < n; ++i) {
          const auto range = index.find(static_cast<size_t>(i));
          ranges(i, 0) = range ? static_cast<int64_t>(range->offset) : -1;
          ranges(i, 1) = range ? static_cast<int64_t>(range->size) : 0;
        }
        return out;
      },
      py::arg("shard"), py::arg("stored"));
  m.def(
      "measure_ceiling",
      [](const FieldSpec& field, size_t num_threads, size_t window_chunks, bool scatter,
         const std::vector<int64_t>& blocks, size_t copies) {
        CeilingResult result;
        {
          const GilRelease release;
          result = measure_ceiling(field, {num_threads, window_chunks, scatter, blocks, copies});
        }
        return py::make_tuple(result.seconds, result.decoded_bytes, result.stored_bytes, result.cpu_seconds);
      },
      py::arg("field"), py::kw_only(), py::arg("num_threads"), py::arg("window_chunks"), py::arg("scatter"),
      py::arg("blocks") = std::vector<int64_t>{}, py::arg("copies") = 1);
  m.def(
      "measure_patch_ceiling",
      [](const FieldSpec& field, const py::array_t<int64_t, py::array::c_style>& starts, size_t num_threads,
         size_t window_patches, std::optional<py::array_t<uint8_t, py::array::c_style>> out) {
        const std::vector<PatchStart> patches = patch_starts(starts);
        uint8_t* const memory = out ? out->mutable_data() : nullptr;
        if (out && static_cast<size_t>(out->nbytes()) != Output(field).sample_bytes() * patches.size()) {
          throw Error(ErrorKind::kConfig,
                      "out has " + std::to_string(out->nbytes()) + " bytes, must have all patches'");
        }
        CeilingResult result;
        {
          const GilRelease release;
          result = measure_patch_ceiling(field, patches, {num_threads, window_patches, memory});
        }
        return py::make_tuple(result.seconds, result.decoded_bytes, result.stored_bytes);
      },
      py::arg("field"), py::arg("starts"), py::kw_only(), py::arg("num_threads"), py::arg("window_patches"),
      py::arg("out").noconvert() = py::none());
  m.def(
      "measure_library_ceiling",
      [](const FieldSpec& field, size_t num_threads, size_t window_chunks,
         std::optional<py::array_t<uint8_t, py::array::c_style>> out, const std::string& blosc2_library) {
        uint8_t* const memory = out ? out->mutable_data() : nullptr;
        if (out && static_cast<size_t>(out->nbytes()) !=
                       Output(field).sample_bytes() * static_cast<size_t>(field.array.shape.at(0))) {
          throw Error(ErrorKind::kConfig,
                      "out has " + std::to_string(out->nbytes()) + " bytes, must have all samples'");
        }
        CeilingResult result;
        {
          const GilRelease release;
          result = measure_library_ceiling(field, {num_threads, window_chunks, memory, blosc2_library});
        }
        return py::make_tuple(result.seconds, result.decoded_bytes, result.stored_bytes);
      },
      py::arg("field"), py::kw_only(), py::arg("num_threads"), py::arg("window_chunks"),
      py::arg("out").noconvert() = py::none(), py::arg("blosc2_library") = "");
}

}  // namespace zarrfeed
