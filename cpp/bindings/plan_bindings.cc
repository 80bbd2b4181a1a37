// The plan of an epoch as Python works it out: arrays that are copied once, when the plan is made.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/gil_release.h"
#include "bindings/spec_bindings.h"
#include "plan/sample_stream.h"
#include "plan/sample_table.h"
#include "plan/unfolding.h"

namespace zarrfeed {
namespace {

namespace py = pybind11;

using Int64Array = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;
using UInt64Array = py::array_t<uint64_t, py::array::c_style | py::array::forcecast>;

template <typename T, int kFlags>
std::vector<T> copy(const py::array_t<T, kFlags>& array) {
  return {array.data(), array.data() + array.size()};
}

/// The decoded chunks that a group hands on to the next group of its lane, and those that several chains of groups
/// take.
struct CarryPlan {
  std::vector<int64_t> next_group, begin, source, chunk, on;
  std::vector<int64_t> take_begin, take_source, take_chunk, run_rows;
};

/// The source of each group, the number of the pass over it, and the keys of the orders of the sources.
struct MixturePlan {
  std::shared_ptr<const Mixture> mixture;
  int64_t begin = 0;
  std::vector<int64_t> group_source, group_pass, source_lanes, source_length;
  std::vector<uint64_t> source_seed;

  /// Throws Error(kConfig) unless its arrays fit together and there are so many groups.
  void check(size_t num_groups) const {
    const size_t sources = mixture->num_sources();
    bool fits = source_seed.size() == sources && source_lanes.size() == sources && source_length.size() == sources &&
                group_source.size() == num_groups && group_pass.size() == num_groups;
    for (const int64_t source : group_source) fits = fits && source >= 0 && static_cast<size_t>(source) < sources;
    for (const int64_t pass : group_pass) fits = fits && pass >= 0;
    for (const int64_t lanes : source_lanes) fits = fits && lanes >= 1;
    for (const int64_t length : source_length) fits = fits && length >= 1;
    if (!fits) throw Error(ErrorKind::kConfig, "plan: the arrays of a mixture do not fit together");
  }

  void put_into(OwnedPlan& owned) const {
    owned.mixture = mixture;
    owned.plan.mixture_begin = begin;
    owned.group_source = group_source;
    owned.group_pass = group_pass;
    owned.source_seed = source_seed;
    owned.source_lanes = source_lanes;
    owned.source_length = source_length;
  }
};

void bind_mixtures(py::module_& m) {
  py::class_<MixtureStage>(m, "MixtureStage")
      .def(py::init([](int64_t first_row, const UInt64Array& ratio, const UInt64Array& phase, const Int64Array& base) {
             return MixtureStage{first_row, copy(ratio), copy(phase), copy(base)};
           }),
           py::kw_only(), py::arg("first_row"), py::arg("ratio"), py::arg("phase"), py::arg("base"));
  py::class_<Mixture, std::shared_ptr<Mixture>>(m, "Mixture")
      .def(
          py::init([](int64_t columns, int64_t unit, const std::vector<std::vector<std::pair<int64_t, int64_t>>>& paths,
                      std::vector<MixtureStage> stages) {
            std::vector<std::vector<Mixture::Turn>> turns;
            for (const auto& path : paths) {
              auto& of_source = turns.emplace_back();
              for (const auto& [node, side] : path) of_source.push_back({node, side});
            }
            return std::make_shared<Mixture>(columns, unit, std::move(turns), std::move(stages));
          }),
          py::kw_only(), py::arg("columns"), py::arg("unit"), py::arg("paths"), py::arg("stages"))
      .def(
          "steps_of",
          [](const Mixture& mixture, size_t source, const Int64Array& positions) {
            if (source >= mixture.num_sources()) throw Error(ErrorKind::kConfig, "mixture: there is no such source");
            py::array_t<int64_t> steps(positions.size());
            for (py::ssize_t i = 0; i < positions.size(); ++i) {
              if (positions.data()[i] < 0) throw Error(ErrorKind::kConfig, "mixture: a position below 0");
              steps.mutable_data()[i] = mixture.step_of(source, positions.data()[i]);
            }
            return steps;
          },
          py::arg("source"), py::arg("positions"));
  py::class_<MixturePlan>(m, "MixturePlan")
      .def(py::init([](std::shared_ptr<Mixture> mixture, int64_t begin, const Int64Array& group_source,
                       const Int64Array& group_pass, const UInt64Array& source_seed, const Int64Array& source_lanes,
                       const Int64Array& source_length) {
             MixturePlan plan{std::move(mixture), begin,
                              copy(group_source), copy(group_pass),
                              copy(source_lanes), copy(source_length),
                              copy(source_seed)};
             plan.check(plan.group_source.size());
             return plan;
           }),
           py::kw_only(), py::arg("mixture"), py::arg("begin"), py::arg("group_source"), py::arg("group_pass"),
           py::arg("source_seed"), py::arg("source_lanes"), py::arg("source_length"))
      .def(
          "group_steps",
          [](const MixturePlan& of, int64_t length, int64_t first, int64_t stride, int64_t begin, int64_t count,
             int64_t run, int64_t period, const Int64Array& lane, const Int64Array& offset, const Int64Array& rows) {
            of.check(static_cast<size_t>(lane.size()));
            OwnedPlan owned;
            of.put_into(owned);
            owned.bind();
            EpochPlan& plan = owned.plan;
            plan.length = length;
            plan.first = first;
            plan.stride = stride;
            plan.begin = begin;
            plan.count = count;
            plan.run = run;
            plan.period = period;
            py::array_t<int64_t> first_step(lane.size());
            py::array_t<int64_t> last_step(lane.size());
            for (py::ssize_t i = 0; i < lane.size(); ++i) {
              const auto group = static_cast<size_t>(i);
              const StepRange range =
                  find_steps(plan, static_cast<size_t>(of.group_source[group]), of.group_pass[group], lane.data()[i],
                             offset.data()[i], rows.data()[i]);
              first_step.mutable_data()[i] = range.first;
              last_step.mutable_data()[i] = range.last;
            }
            return std::pair(first_step, last_step);
          },
          py::kw_only(), py::arg("length"), py::arg("first"), py::arg("stride"), py::arg("begin"), py::arg("count"),
          py::arg("run"), py::arg("period"), py::arg("lane"), py::arg("offset"), py::arg("rows"));
}

/// One orientation a row, as Orientation::source has it.
std::vector<Orientation> make_orientations(const Int64Array& rows, size_t num_dims) {
  if (rows.ndim() != 2 || rows.shape(1) != static_cast<py::ssize_t>(num_dims) || num_dims > kMaxPatchDims) {
    throw Error(ErrorKind::kConfig, "plan: orientations have one number for each dimension of patches");
  }
  std::vector<Orientation> made(static_cast<size_t>(rows.shape(0)));
  for (py::ssize_t i = 0; i < rows.shape(0); ++i) {
    for (py::ssize_t d = 0; d < rows.shape(1); ++d) {
      const int64_t source = rows.at(i, d);
      if (source < -rows.shape(1) || source >= rows.shape(1)) {
        throw Error(ErrorKind::kConfig, "plan: an orientation names dimension " + std::to_string(source));
      }
      made[static_cast<size_t>(i)].source[static_cast<size_t>(d)] = static_cast<int8_t>(source);
    }
  }
  return made;
}

void bind_patches(py::module_& m) {
  py::class_<PatchTable, std::shared_ptr<PatchTable>>(m, "PatchTable")
      .def(py::init([](size_t num_dims, const Int64Array& step, const Int64Array& origin, const Int64Array& least,
                       const Int64Array& last, const Int64Array& block_first, const Int64Array& block_volume,
                       const Int64Array& block_begin, const Int64Array& block_count, int64_t sweep_axis,
                       const Int64Array& volume_of, const Int64Array& start_of, const Int64Array& margin,
                       const Int64Array& period, const Int64Array& stride, const Int64Array& volume_number,
                       const Int64Array& orientations) {
             auto table = std::make_shared<PatchTable>();
             table->num_dims = num_dims;
             table->step = copy(step);
             table->origin = copy(origin);
             table->least = copy(least);
             table->last = copy(last);
             table->block_first = copy(block_first);
             table->block_volume = copy(block_volume);
             table->block_begin = copy(block_begin);
             table->block_count = copy(block_count);
             table->sweep_axis = sweep_axis;
             table->volume_of = copy(volume_of);
             table->start_of = copy(start_of);
             table->margin = copy(margin);
             table->period = copy(period);
             table->stride = copy(stride);
             table->volume_number = copy(volume_number);
             table->orientations = make_orientations(orientations, num_dims);
             table->check();
             return table;
           }),
           py::kw_only(), py::arg("num_dims"), py::arg("step"), py::arg("origin"), py::arg("least"), py::arg("last"),
           py::arg("block_first"), py::arg("block_volume"), py::arg("block_begin"), py::arg("block_count"),
           py::arg("sweep_axis"), py::arg("volume_of"), py::arg("start_of"), py::arg("margin"), py::arg("period"),
           py::arg("stride"), py::arg("volume_number"), py::arg("orientations"));
}

/// Keeps an array alive for a table that borrows it. A thread of the engine may be the last one to drop the table, and
/// never takes the GIL: it leaves the array behind for the next call of keep().
std::shared_ptr<const void> keep(const py::object& array) {
  struct LeftBehind {
    std::mutex mutex;
    std::vector<PyObject*> arrays;
  };
  static auto* const left_behind = new LeftBehind;  // outlives the threads of the engine
  std::vector<PyObject*> dropped;
  {
    const std::lock_guard lock(left_behind->mutex);
    dropped.swap(left_behind->arrays);
  }
  for (PyObject* const one : dropped) Py_DECREF(one);
  return {array.inc_ref().ptr(), [](PyObject* one) {
            if (PyGILState_Check() == 1) {
              Py_DECREF(one);
              return;
            }
            const std::lock_guard lock(left_behind->mutex);
            left_behind->arrays.push_back(one);
          }};
}

void bind_samples(py::module_& m) {
  using OffsetArray = py::array_t<uint16_t, py::array::c_style>;
  using FlagArray = py::array_t<uint8_t, py::array::c_style>;
  const auto for_each = [](const Int64Array& numbers, const auto& find) {
    py::array_t<int64_t> found(numbers.size());
    for (py::ssize_t i = 0; i < numbers.size(); ++i) found.mutable_data()[i] = find(numbers.data()[i]);
    return found;
  };
  const auto shared = [](std::shared_ptr<const SampleTable> table) {
    return std::const_pointer_cast<SampleTable>(std::move(table));
  };
  py::class_<SampleTable, std::shared_ptr<SampleTable>>(m, "SampleTable")
      .def_static(
          "of_list",
          [shared](const Int64Array& samples, bool ascends) {
            return shared(
                SampleTable::of_list({samples.data(), static_cast<size_t>(samples.size())}, keep(samples), ascends));
          },
          py::arg("samples"), py::kw_only(), py::arg("ascends") = true)
      .def_static(
          "of_runs",
          [shared](const Int64Array& begin, const Int64Array& count, int64_t step) {
            return shared(SampleTable::of_runs({begin.data(), static_cast<size_t>(begin.size())},
                                               {count.data(), static_cast<size_t>(count.size())}, step));
          },
          py::kw_only(), py::arg("begin"), py::arg("count"), py::arg("step") = 1)
      .def_static(
          "of_pages",
          [shared](const OffsetArray& offset, const Int64Array& before, unsigned bits) {
            return shared(SampleTable::of_pages({offset.data(), static_cast<size_t>(offset.size())},
                                                {before.data(), static_cast<size_t>(before.size())}, bits,
                                                keep(offset)));
          },
          py::kw_only(), py::arg("offset"), py::arg("before"), py::arg("bits"))
      .def_static(
          "of_repeats",
          [shared](const OffsetArray& offset, const Int64Array& before, const Int64Array& base) {
            return shared(SampleTable::of_repeats({offset.data(), static_cast<size_t>(offset.size())},
                                                  {before.data(), static_cast<size_t>(before.size())},
                                                  {base.data(), static_cast<size_t>(base.size())}, keep(offset)));
          },
          py::kw_only(), py::arg("offset"), py::arg("before"), py::arg("base"))
      .def_static(
          "of_flags",
          [shared](const FlagArray& flags) {
            return shared(SampleTable::of_flags({flags.data(), static_cast<size_t>(flags.size())}, keep(flags)));
          },
          py::arg("flags"))
      .def_static(
          "of_grid",
          [shared](const SampleGrid& grid, std::shared_ptr<SampleTable> rows) {
            return shared(SampleTable::of_grid(grid, std::move(rows)));
          },
          py::kw_only(), py::arg("grid"), py::arg("rows"))
      .def_property_readonly("length", &SampleTable::length)
      .def(
          "at",
          [for_each](const SampleTable& table, const Int64Array& numbers) {
            return for_each(numbers, [&](int64_t number) {
              if (number < 0 || number >= table.length()) {
                throw Error(ErrorKind::kConfig, "plan: there is no sample number " + std::to_string(number));
              }
              return table.at(number);
            });
          },
          py::arg("numbers"))
      .def(
          "rank",
          [for_each](const SampleTable& table, const Int64Array& samples) {
            return for_each(samples, [&](int64_t sample) { return table.rank(sample); });
          },
          py::arg("samples"))
      .def(
          "list",
          [](const SampleTable& table, int64_t first, int64_t count) {
            if (first < 0 || count < 0 || first > table.length() || count > table.length() - first) {
              throw Error(ErrorKind::kConfig, "plan: there are no such samples");
            }
            py::array_t<int64_t> found(count);
            table.list(first, {found.mutable_data(), static_cast<size_t>(count)});
            return found;
          },
          py::arg("first"), py::arg("count"));
}

}  // namespace

void bind_plans(py::module_& m) {
  bind_mixtures(m);
  bind_patches(m);
  bind_samples(m);
  py::class_<CarryPlan>(m, "CarryPlan")
      .def(py::init([](const Int64Array& next_group, const Int64Array& begin, const Int64Array& source,
                       const Int64Array& chunk, const Int64Array& on, const Int64Array& take_begin,
                       const Int64Array& take_source, const Int64Array& take_chunk,
                       const std::optional<Int64Array>& run_rows) {
             return CarryPlan{copy(next_group),  copy(begin),      copy(source),
                              copy(chunk),       copy(on),         copy(take_begin),
                              copy(take_source), copy(take_chunk), run_rows ? copy(*run_rows) : std::vector<int64_t>()};
           }),
           py::kw_only(), py::arg("next_group"), py::arg("begin"), py::arg("source"), py::arg("chunk"), py::arg("on"),
           py::arg("take_begin"), py::arg("take_source"), py::arg("take_chunk"), py::arg("run_rows") = py::none());
  py::class_<PythonPlan>(m, "EpochPlan")
      .def(py::init([](uint64_t seed, uint64_t epoch, bool shuffle, int64_t lanes, int64_t length, int64_t num_samples,
                       int64_t sample_step, int64_t first, int64_t stride, int64_t begin, int64_t count, int64_t steps,
                       const Int64Array& group_begin, const Int64Array& group_lane, const Int64Array& group_offset,
                       const Int64Array& group_number, const Int64Array& group_turn, const Int64Array& extra_position,
                       const Int64Array& extra_step, const Int64Array& first_step, const Int64Array& last_step,
                       std::shared_ptr<SampleTable> selected, const Int64Array& segment_block,
                       const Int64Array& segment_first, const Int64Array& segment_rows, const Int64Array& segment_start,
                       const Int64Array& segment_length, int64_t run, int64_t period,
                       const std::optional<CarryPlan>& carry, const std::optional<MixturePlan>& mixture,
                       std::shared_ptr<PatchTable> patches, std::shared_ptr<BlockOrder> block_order, int64_t mix) {
             auto owned = std::make_shared<OwnedPlan>();
             EpochPlan& plan = owned->plan;
             plan.seed = seed;
             plan.epoch = epoch;
             plan.shuffle = shuffle;
             plan.lanes = lanes;
             plan.length = length;
             plan.num_samples = num_samples;
             plan.sample_step = sample_step;
             plan.first = first;
             plan.stride = stride;
             plan.begin = begin;
             plan.count = count;
             plan.steps = steps;
             plan.run = run;
             plan.period = period;
             owned->group_begin = copy(group_begin);
             owned->group_lane = copy(group_lane);
             owned->group_offset = copy(group_offset);
             owned->group_number = copy(group_number);
             owned->group_turn = copy(group_turn);
             owned->extra_position = copy(extra_position);
             owned->extra_step = copy(extra_step);
             owned->first_step = copy(first_step);
             owned->last_step = copy(last_step);
             owned->selected = std::move(selected);
             owned->segment_block = copy(segment_block);
             owned->segment_first = copy(segment_first);
             owned->segment_rows = copy(segment_rows);
             owned->segment_start = copy(segment_start);
             owned->segment_length = copy(segment_length);
             if (carry) {
               owned->next_group = carry->next_group;
               owned->carry_begin = carry->begin;
               owned->carry_source = carry->source;
               owned->carry_chunk = carry->chunk;
               owned->carry_on = carry->on;
               owned->take_begin = carry->take_begin;
               owned->take_source = carry->take_source;
               owned->take_chunk = carry->take_chunk;
               owned->run_rows = carry->run_rows;
             }
             if (mixture) {
               mixture->check(owned->group_lane.size());
               mixture->put_into(*owned);
             }
             if (patches != nullptr && patches->num_samples() != num_samples) {
               throw Error(ErrorKind::kConfig, "plan: the patch table has another number of samples");
             }
             owned->patches = std::move(patches);
             owned->block_order = std::move(block_order);
             owned->mix = mix;
             owned->bind();
             return PythonPlan{std::move(owned)};
           }),
           py::kw_only(), py::arg("seed"), py::arg("epoch"), py::arg("shuffle"), py::arg("lanes"), py::arg("length"),
           py::arg("num_samples"), py::arg("sample_step"), py::arg("first"), py::arg("stride"), py::arg("begin"),
           py::arg("count"), py::arg("steps"), py::arg("group_begin"), py::arg("group_lane"), py::arg("group_offset"),
           py::arg("group_number"), py::arg("group_turn"), py::arg("extra_position"), py::arg("extra_step"),
           py::arg("first_step"), py::arg("last_step"), py::arg("selected"), py::arg("segment_block"),
           py::arg("segment_first"), py::arg("segment_rows"), py::arg("segment_start"), py::arg("segment_length"),
           py::arg("run") = 0, py::arg("period") = 0, py::arg("carry") = py::none(), py::arg("mixture") = py::none(),
           py::arg("patches") = std::shared_ptr<PatchTable>{}, py::arg("block_order") = std::shared_ptr<BlockOrder>{},
           py::arg("mix") = 1)
      .def("count_pieces",
           [](const PythonPlan& plan) {
             const auto owned = plan.owned;
             const GilRelease release;
             if (owned->block_order == nullptr) return owned->segment_block.size();
             constexpr size_t kGroupsAtOnce = 1024;
             size_t pieces = 0;
             Unfolding unfolding(owned);
             while (const auto window = unfolding.next(kGroupsAtOnce)) pieces += window->segment_block.size();
             return pieces;
           })
      .def("segments", [](const PythonPlan& plan) {
        const auto owned = plan.owned;
        if (owned->block_order != nullptr) throw Error(ErrorKind::kConfig, "plan: its groups are not listed");
        py::array_t<int64_t> out(owned->plan.steps);
        const std::span<int64_t> view(out.mutable_data(), static_cast<size_t>(owned->plan.steps));
        const GilRelease release;
        list_segments(owned->plan, view);
        return out;
      });
  py::class_<SampleStream>(m, "SampleStream")
      .def(py::init([](const PythonPlan& plan) { return std::make_unique<SampleStream>(plan.owned); }), py::arg("plan"))
      .def_property_readonly("left", &SampleStream::left)
      .def(
          "next",
          [](SampleStream& stream, int64_t count) {
            py::array_t<int64_t> samples(std::clamp<int64_t>(count, 0, stream.left()));
            const std::span<int64_t> out(samples.mutable_data(), static_cast<size_t>(samples.size()));
            const GilRelease release;
            stream.next(out);
            return samples;
          },
          py::arg("count"));
}

}  // namespace zarrfeed
