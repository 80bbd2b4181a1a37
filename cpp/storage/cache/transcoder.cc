#include "storage/cache/transcoder.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace zarrfeed {
namespace {

/// Bytes of memory that is kept for the next containers, of all arrays of a process: as many as wait to be compressed.
constexpr size_t kMaxSpareBytes = size_t{16} << 20;
std::atomic<size_t> all_spare_bytes{0};

}  // namespace

BloscRooms::~BloscRooms() {
  all_spare_bytes -= spare_.size() * bytes_;
}

BloscRoom BloscRooms::take() {
  std::unique_ptr<uint8_t[]> memory;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      memory = std::move(spare_.back());
      spare_.pop_back();
      all_spare_bytes -= bytes_;
    }
  }
  if (memory == nullptr) memory = std::make_unique_for_overwrite<uint8_t[]>(bytes_);
  return {memory.release(),
          [rooms = shared_from_this()](uint8_t* used) { rooms->give_back(std::unique_ptr<uint8_t[]>(used)); }};
}

void BloscRooms::give_back(std::unique_ptr<uint8_t[]> memory) {
  if (all_spare_bytes.fetch_add(bytes_) + bytes_ > kMaxSpareBytes) {
    all_spare_bytes -= bytes_;
    return;
  }
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(memory));
}

BloscContainer Transcoder::decode(Bytes stored, DecodeScratch& scratch) const {
  BloscContainer plain = make_plain_blosc(pipeline_.decoded_bytes(), item_bytes_, rooms_->take());
  const Bytes decoded = pipeline_.decode(stored, plain.payload(), scratch);
  if (decoded.data() != plain.payload().data()) std::ranges::copy(decoded, plain.payload().begin());
  return plain;
}

}  // namespace zarrfeed
