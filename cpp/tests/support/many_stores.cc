#include "tests/support/many_stores.h"

#include <algorithm>
#include <utility>

#include "tests/support/plans.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing {
namespace {

/// A layout of rows of 6 x 4 items, with one to three cells.
ArrayLayout layout_of_rows(std::mt19937_64& random) {
  ArrayLayout layout{.shape = {0, 6, 4}, .chunk_shape = {pick(random, 1, 5), pick(random, 2, 6), 4}};
  layout.storage_order = {0, 1, 2};
  if (random() % 3 == 0) {
    std::swap(layout.shape[0], layout.shape[1]);
    std::swap(layout.chunk_shape[0], layout.chunk_shape[1]);
    layout.sample_axis = 1;
  }
  if (random() % 3 == 0) std::shuffle(layout.storage_order.begin(), layout.storage_order.end(), random);
  layout.packing = static_cast<Packing>(random() % kNumPackings);
  layout.big_endian = random() % 4 == 0;
  layout.separator = random() % 2 == 0 ? '.' : '/';
  return layout;
}

}  // namespace

std::vector<int64_t> WindowRows::rows(int64_t sample) const {
  int64_t begin = 0;
  int64_t end = num_samples;
  for (const int64_t border : borders) {
    if (border <= sample) begin = border;
    if (border > sample && border < end) end = border;
  }
  std::vector<int64_t> out;
  for (const int64_t offset : offsets.empty() ? std::vector<int64_t>{0} : offsets) {
    int64_t at = sample + offset;
    const bool is_outside = at < begin || at >= end;
    if (is_outside && pad == PadSpec::Mode::kEdge) at = at < begin ? begin : end - 1;
    int64_t row = map.empty()                                 ? first + step * at
                  : is_outside && pad != PadSpec::Mode::kEdge ? -1
                                                              : map.at(static_cast<size_t>(at));
    if (is_outside && pad == PadSpec::Mode::kFill) row = -1;
    if (row < 0 || row >= num_rows) row = -1;
    out.push_back(row);
  }
  return out;
}

void WindowRows::apply(FieldSpec& field) const {
  field.offsets = offsets;
  field.pad.mode = pad;
  if (!borders.empty()) field.pad.borders = std::make_shared<const std::vector<int64_t>>(borders);
  if (!map.empty()) field.row_map = RowMapSpec{.rows = map.data(), .num_samples = num_samples};
  if (map.empty() && (first != 0 || step != 1 || num_rows != num_samples)) {
    field.row_map = RowMapSpec{.first = first, .step = step};
  }
  field.num_rows = num_rows;
}

WindowRows random_rows(std::mt19937_64& random, int64_t num_samples, int64_t num_rows, int64_t length) {
  WindowRows out;
  out.num_samples = num_samples;
  out.num_rows = num_rows;
  for (int64_t k = 0; k < length; ++k) out.offsets.push_back(pick(random, -4, 4));
  const bool is_mapped = num_rows != num_samples;
  if (is_mapped && random() % 2 == 0) {
    for (int64_t s = 0; s < num_samples; ++s) {
      out.map.push_back(random() % 5 == 0 ? -1 : pick(random, 0, num_rows - 1));
    }
  } else if (is_mapped) {
    out.step = pick(random, 0, 1) == 0 ? 1 : -2;
    out.first = pick(random, -3, num_rows + 2);
  }
  if (length == 0 && !is_mapped) return out;
  out.pad = random() % 2 == 0 ? PadSpec::Mode::kEdge : PadSpec::Mode::kFill;
  if (random() % 2 == 0) return out;
  out.borders = {0};
  while (out.borders.back() < num_samples) {
    out.borders.push_back(std::min(num_samples, out.borders.back() + pick(random, 1, 9)));
  }
  return out;
}

ManyStores::ManyStores(std::mt19937_64& random, const std::filesystem::path& directory, int64_t num_rows,
                       size_t num_layouts)
    : num_rows_(num_rows), num_layouts_(std::min(num_layouts, static_cast<size_t>(num_rows))) {
  std::vector<ArrayLayout> layouts;
  for (size_t i = 0; i < num_layouts_; ++i) layouts.push_back(layout_of_rows(random));
  std::vector<int64_t> chunks(num_layouts_, 0);
  for (int64_t begin = 0; begin < num_rows;) {
    Store& store = stores_.emplace_back();
    // Each layout has a store; the others are at random.
    store.layout = stores_.size() <= num_layouts_ ? stores_.size() - 1 : random() % num_layouts_;
    store.begin = begin;
    const int64_t needed = std::max<int64_t>(0, std::ssize(layouts) - std::ssize(stores_));
    const int64_t rows = pick(random, 1, std::min<int64_t>(12, num_rows - begin - needed));
    ArrayLayout layout = layouts[store.layout];
    const auto axis = static_cast<size_t>(layout.sample_axis);
    layout.shape[axis] = rows;
    layout.first_row = begin;
    store.rows_per_chunk = layout.chunk_shape[axis];
    store.first_chunk = chunks[store.layout];
    chunks[store.layout] += (rows - 1) / store.rows_per_chunk + 1;
    const std::string name = "store" + std::to_string(stores_.size() - 1);
    store.array = std::make_unique<TestArray>(directory / name, std::move(layout));
    begin += rows;
  }
}

const ManyStores::Store& ManyStores::store_of(int64_t row) const {
  return *std::find_if(stores_.begin(), stores_.end(),
                       [row](const Store& store) { return row < store.begin + store.array->num_samples(); });
}

std::vector<FieldSpec> ManyStores::fields(const SlotSpec& slot) const {
  std::vector<FieldSpec> out;
  for (size_t layout = 0; layout < num_layouts_; ++layout) {
    auto parts = std::make_shared<ArrayParts>();
    for (const Store& store : stores_) {
      if (store.layout != layout) continue;
      if (parts->begin.empty()) out.push_back(store.array->field());
      parts->begin.push_back(store.begin);
      parts->end.push_back(store.begin + store.array->num_samples());
      parts->prefix.push_back(store.array->root().string() + "/");
      parts->name.push_back(store.array->root().filename().string());
      parts->rows_per_chunk = store.rows_per_chunk;
    }
    parts->number_chunks();
    FieldSpec& field = out.back();
    field.array.shape[static_cast<size_t>(field.array.sample_axis)] = num_rows_;
    field.array.root.clear();
    field.array.parts = std::move(parts);
    field.slot = slot;
    field.is_variant = layout > 0;
  }
  return out;
}

std::vector<uint8_t> ManyStores::row(int64_t row) const {
  const Store& store = store_of(row);
  return store.array->sample(row - store.begin);
}

int64_t ManyStores::chunk_of(int64_t row) const {
  const Store& store = store_of(row);
  return store.first_chunk + (row - store.begin) / store.rows_per_chunk;
}

ManyStores::Chunk ManyStores::damage(std::mt19937_64& random) const {
  const Store& store = stores_[random() % stores_.size()];
  const std::vector<std::string>& keys = store.array->keys();
  const size_t at = random() % keys.size();
  write_file(store.array->chunk_path(keys[at]), std::vector<uint8_t>(41, 1));
  // Keys are in C order of the axes: the sample axis is the first one or the second of three, the third has one chunk.
  const int64_t along = (store.array->num_samples() - 1) / store.rows_per_chunk + 1;
  const auto number = static_cast<int64_t>(at);
  const bool is_first = store.array->field().array.sample_axis == 0;
  const int64_t chunk = is_first ? number / (std::ssize(keys) / along) : number % along;
  return {store.layout, store.first_chunk + chunk, keys[at]};
}

}  // namespace zarrfeed::testing
