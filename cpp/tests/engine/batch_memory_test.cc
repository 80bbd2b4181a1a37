// The memory of batches: tensors that fields share, and buffers that come all or none.

#include "engine/batch_memory.h"

#include <cstddef>
#include <cstdint>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "spec/field_spec.h"
#include "tests/support/check.h"

namespace zarrfeed::testing::batch_memory_test {
namespace {

constexpr int64_t kBatch = 8;

/// A field with rows in memory, which are not read here.
FieldSpec resident(size_t bytes) {
  FieldSpec field;
  field.kind = FieldSpec::Kind::kResident;
  field.sample_bytes = bytes;
  return field;
}

FieldSpec in_slot(size_t bytes, size_t tensor, size_t offset, size_t row_bytes) {
  FieldSpec field = resident(bytes);
  field.slot = SlotSpec{.tensor = tensor, .row_bytes = row_bytes, .offset = offset};
  return field;
}

OutputTable table(std::vector<FieldSpec> fields) {
  return OutputTable(std::move(fields));
}

}  // namespace

TEST(fields_that_share_a_tensor_have_one_pool) {
  const OutputTable outputs = table({resident(3), in_slot(4, 1, 0, 10), in_slot(6, 1, 4, 10), resident(5)});
  const BatchMemory memory(outputs, kBatch, false);
  CHECK_EQ(memory.num_tensors(), size_t{3});
  CHECK(memory.tensor_of_output() == (std::vector<size_t>{0, 1, 1, 2}));
  CHECK(&memory.output_of(1) == &outputs[1]);
  CHECK_EQ(memory.pool(1)->buffer_bytes(), size_t{10} * kBatch);
  CHECK_EQ(memory.sample_bytes(), size_t{3 + 10 + 5});
  CHECK_EQ(memory.batch_bytes(), size_t{3 + 10 + 5} * kBatch);
}

TEST(a_field_that_does_not_fit_into_its_tensor_is_refused) {
  const auto make = [](std::vector<FieldSpec> fields) {
    const OutputTable outputs = table(std::move(fields));
    const BatchMemory memory(outputs, kBatch, false);
  };
  CHECK_THROWS(kConfig, "field 1 does not fit into a row", make({resident(3), in_slot(7, 1, 4, 10)}));
  CHECK_THROWS(kConfig, "field 1 does not fit into its tensor", make({in_slot(4, 0, 0, 10), in_slot(4, 0, 4, 12)}));
  CHECK_THROWS(kConfig, "field 0 does not fit into its tensor", make({in_slot(4, 3, 0, 10)}));
}

TEST(a_batch_gets_all_of_its_buffers_or_none) {
  const OutputTable outputs = table({resident(3), resident(size_t{1} << 45), resident(5)});
  BatchMemory memory(outputs, kBatch, false);
  std::vector<uint8_t*> buffers(3);
  bool threw = false;
  try {
    memory.acquire(buffers);
  } catch (const std::bad_alloc&) {
    threw = true;
  }
  CHECK(threw);
  memory.retire();  // frees what nobody has
  CHECK_EQ(memory.pool(0)->mapped_bytes(), size_t{0});
}

TEST(buffers_of_a_batch_are_used_again_once_they_are_released) {
  const OutputTable outputs = table({resident(3), resident(5)});
  for (const bool provided : {false, true}) {
    BatchMemory memory(outputs, kBatch, provided);
    std::vector<std::vector<uint8_t>> own = {std::vector<uint8_t>(3 * kBatch), std::vector<uint8_t>(5 * kBatch)};
    if (provided) memory.provide(std::vector<uint8_t*>{own[0].data(), own[1].data()});
    std::vector<uint8_t*> first(2), second(2);
    memory.acquire(first);
    if (provided) CHECK(first == (std::vector<uint8_t*>{own[0].data(), own[1].data()}));
    memory.release(first);
    memory.acquire(second);
    CHECK(second == first);
    memory.release(second);
  }
}

}  // namespace zarrfeed::testing::batch_memory_test
