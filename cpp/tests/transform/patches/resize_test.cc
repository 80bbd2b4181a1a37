// Boxes of images that are resized: vector kernels against plain loops. tests/unit/engine/test_image_decoder.py compares
// them with Pillow.

#include "transform/patches/resize.h"

#include <random>
#include <string>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::resize_test {

TEST(every_instruction_set_makes_the_same_bits) {
  std::mt19937_64 random(1);
  for (int i = 0; i < draws(1500); ++i) {
    const Context context("case " + std::to_string(i));
    const int64_t most = i % 10 == 0 ? 150 : 30;
    const int64_t channels = i % 3 == 0 ? pick(random, 1, 4) : 3;
    const int64_t height = pick(random, 1, most);
    const int64_t width = pick(random, 1, most);
    // Memory of exactly their sizes, for the sanitizer.
    std::vector<uint8_t> source(static_cast<size_t>(height * width * channels));
    for (uint8_t& byte : source) byte = static_cast<uint8_t>(random() % 3 == 0 ? 255 : random());
    PixelBox box{pick(random, 0, height - 1), pick(random, 0, width - 1), 0, 0};
    box.bottom = pick(random, box.top + 1, height);
    box.right = pick(random, box.left + 1, width);
    const int64_t rows = pick(random, 1, most);
    const int64_t columns = pick(random, 1, most);
    const bool mirrored = random() % 2 == 0;
    const Pixels pixels{source.data(), height, width, channels};
    std::vector<uint8_t> expected(static_cast<size_t>(channels * rows * columns), 1);
    std::vector<uint8_t> found(expected.size(), 2);
    resize_image(expected.data(), rows, columns, pixels, box, mirrored, Isa::kBase);
    resize_image(found.data(), rows, columns, pixels, box, mirrored);
    CHECK(found == expected);
  }
}

TEST(a_box_of_the_wanted_size_is_copied_into_planes) {
  const std::vector<uint8_t> source{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};  // 2 x 3 pixels of 2 channels
  for (const Isa isa : {Isa::kBase, best_isa()}) {
    std::vector<uint8_t> found(8);
    resize_image(found.data(), 2, 2, {source.data(), 2, 3, 2}, {0, 1, 2, 3}, false, isa);
    CHECK(found == std::vector<uint8_t>({3, 5, 9, 11, 4, 6, 10, 12}));
    resize_image(found.data(), 2, 2, {source.data(), 2, 3, 2}, {0, 1, 2, 3}, true, isa);
    CHECK(found == std::vector<uint8_t>({5, 3, 11, 9, 6, 4, 12, 10}));
  }
}

}  // namespace zarrfeed::testing::resize_test
