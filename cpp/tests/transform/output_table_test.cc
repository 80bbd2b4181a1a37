// Which outputs draw from which array.

#include "transform/output_table.h"

#include <functional>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::output_table_test {

TEST(outputs_of_one_source_share_its_array) {
  Dataset data = rich_dataset();
  data.again = {1, 0, 1};
  const OutputTable outputs(data.fields());
  CHECK_EQ(outputs.size(), size_t{7});
  const std::vector<size_t> sources = {0, 1, 2, 3, 1, 0, 1};
  for (size_t i = 0; i < outputs.size(); ++i) {
    CHECK_EQ(outputs.source_of(i), sources[i]);
    CHECK(outputs[i].source() == outputs[sources[i]].source());
    CHECK_EQ(outputs.source(i) == nullptr, i >= 2);  // numbers of sources that are stored are 0 and 1
  }
  const auto of = [&](size_t source) {
    return std::vector<size_t>(outputs.outputs_of(source).begin(), outputs.outputs_of(source).end());
  };
  CHECK_EQ(of(0), (std::vector<size_t>{0, 5}));
  CHECK_EQ(of(1), (std::vector<size_t>{1, 4, 6}));
  CHECK_EQ(of(2), std::vector<size_t>{2});
  CHECK(of(4).empty());
  CHECK_EQ(outputs.chunk_bytes(), (std::vector<size_t>{8 * 4 * 5 * 4, 2 * 13 * 4, 0, 0, 0, 0, 0}));
}

TEST(a_source_that_is_not_there_or_another_array_is_refused) {
  const Dataset data = rich_dataset();
  const auto refused = [&](size_t field, size_t source, const std::string& part,
                           const std::function<void(FieldSpec&)>& change = {}) {
    Dataset twice = rich_dataset();
    twice.again = {0};
    std::vector<FieldSpec> fields = twice.fields();
    fields[field].source = source;
    if (change) change(fields[field]);
    CHECK_THROWS(kConfig, part, OutputTable(fields));
  };
  refused(4, 9, "field 4: field 9 is no source");
  refused(0, 1, "field 0: field 1 is no source");  // it comes later
  refused(4, 2, "field 4: field 2 is no source");  // it is in memory
  refused(2, 0, "field 2: field 0 is no source");  // this one is
  refused(4, 1, "field 4: the array of field 1, array1, is another one");
  refused(4, 0, "is another one", [](FieldSpec& field) { field.array.chunk_shape[0] = 4; });
  refused(4, 0, "is another one", [](FieldSpec& field) { field.array.swap_bytes = 4; });
}

}  // namespace zarrfeed::testing::output_table_test
