#pragma once
// Blosc 1 containers, written: with LZ4 and byte shuffle, or plain. codecs/blosc.h reads them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "codecs/blosc_table.h"

namespace zarrfeed {

/// Decoded bytes of the Blosc blocks that are written, at most.
inline constexpr size_t kWrittenBlockBytes = size_t{128} << 10;

/// Memory that containers are written to, which has room for a plain one.
using BloscRoom = std::shared_ptr<uint8_t[]>;

/// A Blosc container in memory of its own.
struct BloscContainer {
  BloscRoom memory{};
  size_t size = 0;

  [[nodiscard]] Bytes bytes() const { return {memory.get(), size}; }
  /// The bytes behind the header: of a plain container, those that it decodes to.
  [[nodiscard]] MutableBytes payload() const {
    return {memory.get() + BloscHeader::kBytes, size - BloscHeader::kBytes};
  }
};

/// Bytes of a plain container.
inline constexpr size_t plain_blosc_bytes(size_t decoded_bytes) {
  return BloscHeader::kBytes + decoded_bytes;
}

/// Makes a plain container, which holds its bytes as they decode: the caller writes them to payload(). `decoded_bytes` are
/// at most INT32_MAX - 16. `typesize`: bytes of an item.
BloscContainer make_plain_blosc(size_t decoded_bytes, size_t typesize, BloscRoom room);

/// Compresses bytes, of which there is at least one, and decodes the result again to compare it. Nothing if it saves less
/// than a sixteenth, or does not decode to the same bytes. The result is valid until this thread compresses again.
std::optional<Bytes> compress_blosc(Bytes decoded, size_t typesize);

}  // namespace zarrfeed
