#include "storage/cache/cache_entry.h"

#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "codecs/codec.h"

namespace zarrfeed {
namespace {

constexpr uint32_t kMaxLabelBytes = 1 << 16;
/// A header and its label are rarely longer, so one read is enough.
constexpr size_t kUsualHeadBytes = 512;

constexpr std::array<char, 8> kMagic{'z', 'f', 'c', 'a', 'c', 'h', 'e', '1'};

/// In front of the label and the payload, in the byte order of the machine.
struct Header {
  std::array<char, 8> magic = kMagic;
  uint64_t payload_bytes = 0;
  uint32_t label_bytes = 0;
  uint32_t payload_crc = 0;
  uint32_t label_crc = 0;
  uint32_t header_crc = 0;  ///< of what is before it

  [[nodiscard]] uint32_t crc() const {
    return crc32c({reinterpret_cast<const uint8_t*>(this), offsetof(Header, header_crc)});
  }
  [[nodiscard]] bool is_intact() const { return magic == kMagic && header_crc == crc(); }
};
static_assert(sizeof(Header) == 32);

Bytes as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string range_text(const ByteRange& range) {
  switch (range.kind) {
    case ByteRange::Kind::kAt:
      return std::to_string(range.offset) + "+" + std::to_string(range.size);
    case ByteRange::Kind::kLast:
      return std::string("-").append(std::to_string(range.size));
    case ByteRange::Kind::kAll:
      break;
  }
  return "";
}

ByteRange parse_range(const std::string& text) {
  if (text.empty()) return {};
  if (text.front() == '-') return ByteRange::last(std::stoull(text.substr(1)));
  const size_t plus = text.find('+');
  if (plus == std::string::npos) throw_corrupt("the range of a cache entry is damaged");
  return ByteRange::at(std::stoull(text.substr(0, plus)), std::stoull(text.substr(plus + 1)));
}

/// The parts of a label, each after its size.
std::string label_of(const CacheKey& key) {
  std::string label;
  for (const std::string& part : {key.store, key.object, range_text(key.range), key.version}) {
    label += std::to_string(part.size()) + ":" + part;
  }
  return label;
}

CacheKey parse_label(const std::string& label) {
  std::array<std::string, 4> parts;
  size_t at = 0;
  for (std::string& part : parts) {
    const size_t colon = label.find(':', at);
    if (colon == std::string::npos) throw_corrupt("the header of a cache entry is damaged");
    const size_t size = std::stoull(label.substr(at, colon - at));
    part = label.substr(colon + 1, size);
    at = colon + 1 + size;
  }
  return {.store = parts[0], .object = parts[1], .version = parts[3], .range = parse_range(parts[2])};
}

/// Writes all of the parts to a file. 0, or the errno.
int write_all(int fd, std::vector<iovec> parts) {
  size_t first = 0;
  while (first < parts.size()) {
    const ssize_t n = writev(fd, parts.data() + first, static_cast<int>(parts.size() - first));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    auto left = static_cast<size_t>(n);
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (first == parts.size()) break;
    parts[first].iov_base = static_cast<uint8_t*>(parts[first].iov_base) + left;
    parts[first].iov_len -= left;
  }
  return 0;
}

iovec part_of(const void* data, size_t size) {
  return {const_cast<void*>(data), size};  // NOLINT(cppcoreguidelines-pro-type-const-cast): writev only reads it
}

enum class Pread { kOk, kWouldBlock, kShort };

/// Reads exactly so many bytes in front of and into `payload`.
Pread read_exactly(int fd, MutableBytes head, MutableBytes payload, bool may_wait, size_t offset = 0) {
  const size_t size = head.size() + payload.size();
  size_t done = 0;
  while (done < size) {
    std::array<iovec, 2> parts{};
    size_t count = 0;
    if (done < head.size()) parts[count++] = part_of(head.data() + done, head.size() - done);
    const size_t of_payload = done < head.size() ? 0 : done - head.size();
    if (of_payload < payload.size()) {
      parts[count++] = part_of(payload.data() + of_payload, payload.size() - of_payload);
    }
    const auto num_parts = static_cast<int>(count);
    ssize_t n = -1;
#ifdef RWF_NOWAIT
    n = preadv2(fd, parts.data(), num_parts, static_cast<off_t>(offset + done), may_wait ? 0 : RWF_NOWAIT);
    // EOPNOTSUPP: a file system that cannot tell whether it would wait, such as tmpfs on old kernels
    if (n < 0 && errno == EOPNOTSUPP) n = preadv(fd, parts.data(), num_parts, static_cast<off_t>(offset + done));
#else
    n = preadv(fd, parts.data(), num_parts, static_cast<off_t>(offset + done));
#endif
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN && !may_wait) return Pread::kWouldBlock;
    if (n <= 0) return may_wait || n == 0 ? Pread::kShort : Pread::kWouldBlock;
    done += static_cast<size_t>(n);
  }
  return Pread::kOk;
}

MutableBytes bytes_of(std::string& text) {
  return {reinterpret_cast<uint8_t*>(text.data()), text.size()};
}

Header header_of(const std::string& head) {
  Header header;
  std::memcpy(&header, head.data(), sizeof(header));
  return header;
}

/// The Error of a damaged header or payload; nothing if all is well.
std::optional<std::string> find_damage(const Header& header, Bytes label, Bytes payload) {
  if (!header.is_intact() || header.label_crc != crc32c(label)) return "the header is damaged";
  if (header.payload_bytes != payload.size()) {
    return "has " + std::to_string(payload.size()) + " bytes, the header says " + std::to_string(header.payload_bytes);
  }
  if (header.payload_crc != crc32c(payload)) return "the crc32c of the bytes is not the one in the header";
  return std::nullopt;
}

}  // namespace

uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t hash_text(std::string_view text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325 ^ mix_bits(seed);
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return mix_bits(hash);
}

std::string hex_of(uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; value >>= 4) text[i] = kDigits[value & 15];
  return text;
}

CacheEntry::CacheEntry(const CacheKey& key) : label(label_of(key)), store(key.store) {
  const std::string name = key.object + '\0' + range_text(key.range);
  const uint64_t of_store = hash_text(key.store, 1);
  const std::string digits = hex_of(hash_text(name, of_store)) + hex_of(hash_text(name, ~of_store));
  folder = std::string(kCacheEntries) + "/" + hex_of(of_store);
  path = folder + "/" + digits.substr(0, 2) + "/" + digits.substr(2);
  hash = hash_text(path, 2);
  if (key.range.kind != ByteRange::Kind::kAll) bytes = key.range.size;
}

uint64_t CacheEntryFile::size_of(const CacheEntry& entry, size_t payload) {
  return sizeof(Header) + entry.label.size() + payload;
}

int CacheEntryFile::write(int fd, const CacheEntry& entry, Bytes payload) {
  if (entry.label.size() > kMaxLabelBytes) return ENAMETOOLONG;
  Header header;
  header.payload_bytes = payload.size();
  header.label_bytes = static_cast<uint32_t>(entry.label.size());
  header.payload_crc = crc32c(payload);
  header.label_crc = crc32c(as_bytes(entry.label));
  header.header_crc = header.crc();
  std::vector<iovec> parts{part_of(&header, sizeof(header)), part_of(entry.label.data(), entry.label.size())};
  if (!payload.empty()) parts.push_back(part_of(payload.data(), payload.size()));
  return write_all(fd, std::move(parts));
}

CacheEntryFile::Found CacheEntryFile::read(int fd, uint64_t size, const CacheEntry& entry, size_t max_bytes,
                                           bool may_wait, Buffer& room, CacheEntryFile& out, const ChunkParts* parts) {
  const auto failed = [](Pread got) { return got == Pread::kWouldBlock ? Found::kWouldBlock : Found::kMiss; };
  if (size < sizeof(Header)) return Found::kDamaged;
  out.head_.resize(sizeof(Header) + entry.label.size());
  const uint64_t payload = size - std::min<uint64_t>(size, out.head_.size());
  const bool is_plausible = size >= out.head_.size() && (entry.bytes ? payload == *entry.bytes : payload <= max_bytes);
  if (!is_plausible) out.head_.resize(sizeof(Header));
  const MutableBytes into = room.reserve(is_plausible && parts == nullptr ? payload : 0);
  Pread got = read_exactly(fd, bytes_of(out.head_), into, may_wait);
  if (got != Pread::kOk) return failed(got);
  out.read_ = {into, nullptr};
  const Header header = header_of(out.head_);
  const std::string_view label = std::string_view(out.head_).substr(sizeof(header));
  if (is_plausible && header.magic == kMagic && header.payload_bytes == payload && label == entry.label) {
    if (parts == nullptr) return Found::kHit;
    const auto read_at = [&](size_t offset, MutableBytes to) {
      got = read_exactly(fd, to, {}, may_wait, out.head_.size() + offset);
      return got == Pread::kOk;
    };
    return read_parts(*parts, payload, room, read_at, out.read_) ? Found::kHit : failed(got);
  }
  // Another version of the object, or damage.
  if (!header.is_intact() || sizeof(header) + header.label_bytes + header.payload_bytes != size) return Found::kDamaged;
  if (header.label_bytes != entry.label.size()) return Found::kMiss;
  return is_plausible && header.label_crc == crc32c(as_bytes(std::string(label))) ? Found::kMiss : Found::kDamaged;
}

bool CacheEntryFile::is_intact() const {
  return !find_damage(header_of(head_), Bytes(as_bytes(head_)).subspan(sizeof(Header)), read_.bytes);
}

std::optional<CacheEntryInfo> read_cache_entry_info(int fd) {
  std::string head(kUsualHeadBytes, '\0');
  ssize_t n = pread(fd, head.data(), head.size(), 0);
  if (n < static_cast<ssize_t>(sizeof(Header))) return std::nullopt;
  const Header header = header_of(head);
  if (!header.is_intact() || header.label_bytes > kMaxLabelBytes) return std::nullopt;
  head.resize(sizeof(header) + header.label_bytes);
  if (static_cast<size_t>(n) < head.size()) n = pread(fd, head.data(), head.size(), 0);
  const std::string label = head.substr(sizeof(header));
  if (n < static_cast<ssize_t>(head.size()) || header.label_crc != crc32c(as_bytes(label))) return std::nullopt;
  try {
    return CacheEntryInfo{parse_label(label), header.payload_bytes};
  } catch (const std::exception&) {  // somebody else's file: a checksum is no signature
    return std::nullopt;
  }
}

CacheEntryInfo check_cache_entry(int fd, const std::string& path) {
  struct stat info{};
  if (fstat(fd, &info) != 0) throw Error::io(path + ": " + std::strerror(errno), errno);
  const auto size = static_cast<uint64_t>(info.st_size);
  Header header;
  std::vector<uint8_t> head(sizeof(header));
  if (size < head.size() || read_exactly(fd, head, {}, true) != Pread::kOk) {
    throw_corrupt(path + ": is shorter than a header");
  }
  std::memcpy(&header, head.data(), head.size());
  if (!header.is_intact() || header.label_bytes > kMaxLabelBytes || size < head.size() + header.label_bytes) {
    throw_corrupt(path + ": the header is damaged");
  }
  head.resize(sizeof(header) + header.label_bytes);
  std::vector<uint8_t> payload(size - head.size());
  if (read_exactly(fd, head, payload, true) != Pread::kOk) throw_corrupt(path + ": cannot be read");
  const Bytes label = Bytes(head).subspan(sizeof(header));
  if (const auto damage = find_damage(header, label, payload)) throw_corrupt(path + ": " + *damage);
  return {parse_label({reinterpret_cast<const char*>(label.data()), label.size()}), payload.size()};
}

}  // namespace zarrfeed
