#include "fuzz/support/fuzz.h"

#include <algorithm>
#include <stdexcept>

#include "base/error.h"

namespace zarrfeed::fuzzing {
namespace {

constinit const Target* last_made = nullptr;  // set before main()

/// Bytes of the numbers of a range.
size_t width(int64_t low, int64_t high) {
  const uint64_t last = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  return last < 256 ? 1 : last < 65'536 ? 2 : 8;
}

uint64_t load(Bytes bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= static_cast<uint64_t>(bytes[i]) << 8 * i;
  return value;
}

void store(ByteVector& out, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i) out.push_back(static_cast<uint8_t>(value >> 8 * i));
}

}  // namespace

Target::Target(const char* target_name, void (*run)(Bytes), std::vector<ByteVector> (*seeds)(),
               std::vector<Finding> (*found)(), int64_t changes) noexcept
    : name(target_name), run_input(run), make_seeds(seeds), findings(found), num_changes(changes), next(last_made) {
  last_made = this;
}

const Target* first_target() {
  return last_made;
}

uint8_t Draw::byte() {
  return static_cast<uint8_t>(load(take(1)));
}

int64_t Draw::pick(int64_t low, int64_t high) {
  const uint64_t value = load(take(width(low, high)));
  const uint64_t count = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
  return static_cast<int64_t>(static_cast<uint64_t>(low) + (count == 0 ? value : value % count));
}

uint64_t Draw::word64() {
  return load(take(8));
}

Bytes Draw::take(size_t size) {
  const Bytes taken = rest_.first(std::min(size, rest_.size()));
  rest_ = rest_.subspan(taken.size());
  return taken;
}

Pen& Pen::byte(uint8_t value) {
  out_.push_back(value);
  return *this;
}

Pen& Pen::pick(int64_t value, int64_t low, int64_t high) {
  store(out_, static_cast<uint64_t>(value) - static_cast<uint64_t>(low), width(low, high));
  return *this;
}

Pen& Pen::word64(uint64_t value) {
  store(out_, value, 8);
  return *this;
}

Pen& Pen::bytes(Bytes value) {
  out_.insert(out_.end(), value.begin(), value.end());
  return *this;
}

bool is_refusal(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  if (ours == nullptr) return false;
  const ErrorKind kind = ours->kind();
  return kind == ErrorKind::kCorrupt || kind == ErrorKind::kUnsupported || kind == ErrorKind::kIo;
}

ByteVector from_hex(const std::string& hex) {
  ByteVector out;
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') digits += c;
  }
  if (digits.size() % 2 != 0) throw std::invalid_argument("an odd number of hexadecimal digits");
  for (size_t i = 0; i < digits.size(); i += 2) {
    out.push_back(static_cast<uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
  }
  return out;
}

}  // namespace zarrfeed::fuzzing
