#include <string>

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {

Bytes verify_checksum(Bytes in, bool at_start, std::string_view name, uint32_t (*checksum)(Bytes data)) {
  if (in.size() < kChecksumBytes) {
    throw_corrupt(std::string(name) + " needs 4 bytes, the chunk holds " + std::to_string(in.size()));
  }
  const Bytes payload = at_start ? in.subspan(kChecksumBytes) : in.first(in.size() - kChecksumBytes);
  const uint32_t stored = load_le32(at_start ? in.data() : in.data() + payload.size());
  const uint32_t computed = checksum(payload);
  if (stored != computed) {
    throw_corrupt(std::string(name) + " is " + std::to_string(computed) + ", the chunk says " + std::to_string(stored));
  }
  return payload;
}

}  // namespace zarrfeed
