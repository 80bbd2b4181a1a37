// The plan of an epoch as Python works it out: arrays that are copied once, when the plan is made.

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings/spec_bindings.h"

namespace zarrfeed {
namespace {

namespace py = pybind11;

using Int64Array = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

std::vector<int64_t> copy(const Int64Array& array) {
  return {array.data(), array.data() + array.size()};
}

/// Which decoded chunks a group hands on to the next group of its lane.
struct CarryPlan {
  std::vector<int64_t> next_group, begin, field, chunk, on;
};

}  // namespace

void bind_plans(py::module_& m) {
  py::class_<CarryPlan>(m, "CarryPlan")
      .def(py::init([](const Int64Array& next_group, const Int64Array& begin, const Int64Array& field,
                       const Int64Array& chunk, const Int64Array& on) {
             return CarryPlan{copy(next_group), copy(begin), copy(field), copy(chunk), copy(on)};
           }),
           py::kw_only(), py::arg("next_group"), py::arg("begin"), py::arg("field"), py::arg("chunk"), py::arg("on"));
  py::class_<PythonPlan>(m, "EpochPlan")
      .def(py::init([](uint64_t seed, uint64_t epoch, bool shuffle, int64_t lanes, int64_t length, int64_t num_samples,
                       int64_t sample_step, int64_t first, int64_t stride, int64_t begin, int64_t count, int64_t steps,
                       const Int64Array& group_begin, const Int64Array& group_lane, const Int64Array& group_offset,
                       const Int64Array& group_number, const Int64Array& group_turn, const Int64Array& extra_position,
                       const Int64Array& extra_step, const Int64Array& first_step, const Int64Array& last_step,
                       const Int64Array& selected, const Int64Array& segment_block, const Int64Array& segment_first,
                       const Int64Array& segment_rows, const Int64Array& segment_start,
                       const Int64Array& segment_length, const std::optional<CarryPlan>& carry) {
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
             owned->group_begin = copy(group_begin);
             owned->group_lane = copy(group_lane);
             owned->group_offset = copy(group_offset);
             owned->group_number = copy(group_number);
             owned->group_turn = copy(group_turn);
             owned->extra_position = copy(extra_position);
             owned->extra_step = copy(extra_step);
             owned->first_step = copy(first_step);
             owned->last_step = copy(last_step);
             owned->selected = copy(selected);
             owned->segment_block = copy(segment_block);
             owned->segment_first = copy(segment_first);
             owned->segment_rows = copy(segment_rows);
             owned->segment_start = copy(segment_start);
             owned->segment_length = copy(segment_length);
             if (carry) {
               owned->next_group = carry->next_group;
               owned->carry_begin = carry->begin;
               owned->carry_field = carry->field;
               owned->carry_chunk = carry->chunk;
               owned->carry_on = carry->on;
             }
             owned->bind();
             return PythonPlan{std::move(owned)};
           }),
           py::kw_only(), py::arg("seed"), py::arg("epoch"), py::arg("shuffle"), py::arg("lanes"), py::arg("length"),
           py::arg("num_samples"), py::arg("sample_step"), py::arg("first"), py::arg("stride"), py::arg("begin"),
           py::arg("count"), py::arg("steps"), py::arg("group_begin"), py::arg("group_lane"), py::arg("group_offset"),
           py::arg("group_number"), py::arg("group_turn"), py::arg("extra_position"), py::arg("extra_step"),
           py::arg("first_step"), py::arg("last_step"), py::arg("selected"), py::arg("segment_block"),
           py::arg("segment_first"), py::arg("segment_rows"), py::arg("segment_start"), py::arg("segment_length"),
           py::arg("carry") = py::none());
}

}  // namespace zarrfeed
