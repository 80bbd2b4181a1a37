// Blosc 1 containers that are written here come back, and save what they promise.

#include "codecs/blosc_writer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <random>

#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::blosc_writer_test {
namespace {

ByteVector unpacked(Bytes container, size_t size) {
  return decoded(decode_blosc, {container.begin(), container.end()}, size);
}

BloscRoom room_for(size_t size) {
  return BloscRoom(new uint8_t[plain_blosc_bytes(size)]);
}

}  // namespace

TEST(compressed_bytes_of_any_size_come_back) {
  std::mt19937_64 random(11);
  constexpr std::array<size_t, 9> kTypesizes = {1, 2, 3, 4, 8, 12, 16, 17, 300};
  size_t num_compressed = 0;
  for (int i = 0; i < 300; ++i) {
    const size_t typesize = kTypesizes[random() % kTypesizes.size()];
    const auto most = static_cast<int64_t>((i % 10 == 0 ? 600'000 : 5'000) / typesize);
    const size_t size = typesize * static_cast<size_t>(pick(random, 1, most));
    const ByteVector data = random() % 4 == 0 ? noise(size, random()) : smooth(size, random());
    const Context context("typesize " + show(typesize) + " bytes " + show(size));
    const std::optional<Bytes> packed = compress_blosc(data, typesize);
    if (!packed) continue;
    ++num_compressed;
    CHECK(packed->size() <= size - size / 16);
    CHECK(unpacked(*packed, size) == data);
    const BloscHeader header = BloscHeader::read(*packed, packed->size(), size);
    CHECK_EQ(header.stored_bytes, packed->size());
    CHECK_EQ(header.typesize, typesize > 255 ? size_t{1} : typesize);
    CHECK(header.block_bytes <= kWrittenBlockBytes);
  }
  CHECK(num_compressed > 100);
}

TEST(bytes_that_do_not_compress_are_refused_and_plain_ones_come_back) {
  for (const size_t size : {size_t{1}, size_t{15}, size_t{4096}, size_t{300'000}}) {
    const ByteVector data = noise(size, size);
    CHECK(!compress_blosc(data, 1));
    const BloscContainer plain = make_plain_blosc(size, 4, room_for(size));
    std::ranges::copy(data, plain.payload().begin());
    CHECK(unpacked(plain.bytes(), size) == data);
  }
}

}  // namespace zarrfeed::testing::blosc_writer_test
