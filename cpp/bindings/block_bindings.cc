// The blocks that an epoch reads, and their order: what plans that are unfolded name.

#include <pybind11/numpy.h>

#include <utility>
#include <vector>

#include "bindings/gil_release.h"
#include "bindings/spec_bindings.h"
#include "plan/block_order.h"
#include "plan/sequence_packing.h"
#include "plan/weighted_counts.h"

namespace zarrfeed {
namespace {

namespace py = pybind11;

using Int64Array = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

std::span<const int64_t> view(const Int64Array& array) {
  return {array.data(), static_cast<size_t>(array.size())};
}

/// Throws Error(kConfig) unless all numbers are in [0, end).
void check_range(std::span<const int64_t> numbers, int64_t end) {
  for (const int64_t one : numbers) {
    if (one < 0 || one >= end) {
      throw Error(ErrorKind::kConfig, "plan: " + std::to_string(one) + " is not in [0, " + std::to_string(end) + ")");
    }
  }
}

/// The arrays of one number each that `of_one` makes of some numbers.
template <typename Function>
py::array_t<int64_t> each(const Int64Array& numbers, int64_t end, Function&& of_one) {
  const std::span<const int64_t> in = view(numbers);
  check_range(in, end);
  py::array_t<int64_t> out(numbers.size());
  int64_t* const to = out.mutable_data();
  const GilRelease release;
  for (size_t i = 0; i < in.size(); ++i) to[i] = of_one(in[i]);
  return out;
}

py::array_t<int64_t> unfold(const BlockOrder& order, int64_t begin, int64_t end) {
  const int64_t num_blocks = order.table().num_blocks();
  if (begin < 0 || begin > end || end > num_blocks) {
    throw Error(ErrorKind::kConfig,
                "plan: there are no blocks " + std::to_string(begin) + " to " + std::to_string(end));
  }
  py::array_t<int64_t> out(end - begin);
  int64_t* to = out.mutable_data();
  const GilRelease release;
  std::vector<uint32_t> held_indices;
  while (begin < end) {
    order.unfold(begin, held_indices);
    const int64_t count = std::min<int64_t>(std::ssize(held_indices), end - begin);
    to = std::copy_n(held_indices.begin(), count, to);
    begin += count;
  }
  return out;
}

}  // namespace

void bind_blocks(py::module_& m) {
  py::class_<BlockTable, std::shared_ptr<BlockTable>>(m, "BlockTable")
      .def_static(
          "of_runs",
          [](const Int64Array& held_index, const Int64Array& block, const Int64Array& first, const Int64Array& stride,
             const Int64Array& rows, int64_t num_blocks) {
            std::vector<BlockRun> runs;
            const auto count = held_index.size();
            if (block.size() != count || first.size() != count || stride.size() != count || rows.size() != count) {
              throw Error(ErrorKind::kConfig, "plan: the arrays of runs of blocks have several lengths");
            }
            for (py::ssize_t i = 0; i < count; ++i) {
              runs.push_back(
                  {held_index.data()[i], block.data()[i], first.data()[i], stride.data()[i], rows.data()[i]});
            }
            return std::const_pointer_cast<BlockTable>(BlockTable::of_runs(std::move(runs), num_blocks));
          },
          py::kw_only(), py::arg("held_index"), py::arg("block"), py::arg("first"), py::arg("stride"), py::arg("rows"),
          py::arg("num_blocks"))
      .def_static(
          "of_steps",
          [](int64_t start, int64_t step, int64_t count, int64_t block_rows) {
            return std::const_pointer_cast<BlockTable>(BlockTable::of_steps(start, step, count, block_rows));
          },
          py::kw_only(), py::arg("start"), py::arg("step"), py::arg("count"), py::arg("block_rows"))
      .def_static(
          "of_list",
          [](const Int64Array& block, const Int64Array& first, const Int64Array& rows) {
            return std::const_pointer_cast<BlockTable>(BlockTable::of_list(view(block), view(first), view(rows)));
          },
          py::kw_only(), py::arg("block"), py::arg("first"), py::arg("rows"))
      .def_property_readonly("num_blocks", &BlockTable::num_blocks)
      .def_property_readonly("length", &BlockTable::length)
      .def(
          "at",
          [](const BlockTable& table, const Int64Array& held_indices) {
            check_range(view(held_indices), table.num_blocks());
            py::array_t<int64_t> block(held_indices.size());
            py::array_t<int64_t> first(held_indices.size());
            py::array_t<int64_t> rows(held_indices.size());
            for (py::ssize_t i = 0; i < held_indices.size(); ++i) {
              const BlockRows one = table.at(held_indices.data()[i]);
              block.mutable_data()[i] = one.block;
              first.mutable_data()[i] = one.first;
              rows.mutable_data()[i] = one.rows;
            }
            return py::make_tuple(block, first, rows);
          },
          py::arg("held_indices"))
      .def(
          "rows_before",
          [](const BlockTable& table, const Int64Array& held_indices) {
            return each(held_indices, table.num_blocks() + 1,
                        [&](int64_t held_index) { return table.rows_before(held_index); });
          },
          py::arg("held_indices"))
      .def(
          "indices_of",
          [](const BlockTable& table, const Int64Array& rows) {
            return each(rows, table.length(), [&](int64_t row) { return table.index_of(row); });
          },
          py::arg("rows"));
  py::class_<BlockOrder, std::shared_ptr<BlockOrder>>(m, "BlockOrder")
      .def_static(
          "natural",
          [](std::shared_ptr<BlockTable> table, int64_t first, bool short_last) {
            return std::const_pointer_cast<BlockOrder>(BlockOrder::natural(std::move(table), first, short_last));
          },
          py::arg("table"), py::kw_only(), py::arg("first") = 0, py::arg("short_last") = false)
      .def_static(
          "listed",
          [](std::shared_ptr<BlockTable> table, const Int64Array& held_indices) {
            const GilRelease release;
            return std::const_pointer_cast<BlockOrder>(BlockOrder::listed(std::move(table), view(held_indices)));
          },
          py::arg("table"), py::arg("held_indices"))
      .def_static(
          "combs",
          [](std::shared_ptr<BlockTable> table, uint64_t seed, uint64_t epoch, int64_t strata) {
            const GilRelease release;
            return std::const_pointer_cast<BlockOrder>(BlockOrder::combs(std::move(table), seed, epoch, strata));
          },
          py::arg("table"), py::kw_only(), py::arg("seed"), py::arg("epoch"), py::arg("strata"))
      .def("held_indices", &unfold, py::arg("begin"), py::arg("end"))
      .def(
          "find",
          [](const BlockOrder& order, const Int64Array& positions) {
            return each(positions, order.table().length(),
                        [&](int64_t position) { return order.find(position).ordinal; });
          },
          py::arg("positions"))
      .def(
          "begins",
          [](const BlockOrder& order, const Int64Array& ordinals) {
            return each(ordinals, order.table().num_blocks(), [&](int64_t ordinal) { return order.at(ordinal).begin; });
          },
          py::arg("ordinals"))
      .def(
          "ordinals_of",
          [](const BlockOrder& order, const Int64Array& held_indices) {
            return each(held_indices, order.table().num_blocks(),
                        [&](int64_t held_index) { return order.ordinal_of(held_index); });
          },
          py::arg("held_indices"));
  m.def(
      "draw_counts",
      [](const Int64Array& expected, unsigned bits, const Int64Array& rows, uint64_t seed, uint64_t epoch) {
        py::array_t<int64_t> counts(expected.size());
        const std::span<int64_t> out(counts.mutable_data(), static_cast<size_t>(counts.size()));
        const WeightedRows of{view(expected), bits, view(rows)};
        const GilRelease release;
        draw_counts(of, seed, epoch, out);
        return counts;
      },
      py::kw_only(), py::arg("expected"), py::arg("bits"), py::arg("rows"), py::arg("seed"), py::arg("epoch"));
  m.def(
      "pack_sequences",
      [](const Int64Array& lengths, const Int64Array& pool_begin, int64_t room) {
        py::array_t<int64_t> sample_of(lengths.size());
        const std::span<int64_t> out(sample_of.mutable_data(), static_cast<size_t>(sample_of.size()));
        const auto of = view(lengths);
        const auto pools = view(pool_begin);
        const GilRelease release;
        pack_sequences(of, pools, room, out);
        return sample_of;
      },
      py::kw_only(), py::arg("lengths"), py::arg("pool_begin"), py::arg("room"));
}

}  // namespace zarrfeed
