// zlib (RFC 1950) and gzip (RFC 1952), through libdeflate if the build found it, and through the bundled zlib-ng.

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "codecs/codec.h"

#ifdef ZARRFEED_LIBDEFLATE
#include <libdeflate.h>
#endif

namespace zarrfeed {
namespace {

constexpr int kZlibWindow = 15;
constexpr int kGzipWindow = 15 + 16;
constexpr int32_t kNoFlush = 0;
constexpr int32_t kOk = 0;
constexpr int32_t kStreamEnd = 1;
constexpr int32_t kBufferError = -5;

uint32_t clip32(size_t n) {
  return static_cast<uint32_t>(std::min<size_t>(n, std::numeric_limits<uint32_t>::max()));
}

/// Inflates one stream by libdeflate, which takes two thirds of zlib-ng's time; advances `in` behind it. Returns the bytes
/// written to `out`; nothing if the build did not find libdeflate, or if it refuses the stream: zlib-ng then says why.
std::optional<size_t> inflate_at_once([[maybe_unused]] Bytes& in, [[maybe_unused]] MutableBytes out,
                                      [[maybe_unused]] int window_bits) {
#ifdef ZARRFEED_LIBDEFLATE
  // 11 KiB that libdeflate allocates in less time than it takes to inflate 100 bytes: no thread has to keep them.
  const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> context(
      libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  if (context == nullptr) throw std::bad_alloc();
  const auto decompress = window_bits == kZlibWindow ? libdeflate_zlib_decompress_ex : libdeflate_gzip_decompress_ex;
  size_t read = 0;
  size_t written = 0;
  if (decompress(context.get(), in.data(), in.size(), out.data(), out.size(), &read, &written) == LIBDEFLATE_SUCCESS) {
    in = in.subspan(read);
    return written;
  }
#endif
  return std::nullopt;
}

/// Inflates one stream; advances `in` behind it. Returns the bytes written to `out`.
size_t inflate_stream(Bytes& in, MutableBytes out, DecodeScratch& scratch, int window_bits, const char* name) {
  if (const auto written = inflate_at_once(in, out, window_bits)) return *written;
  zng_stream& stream = scratch.inflate(window_bits);
  size_t read = 0;
  size_t written = 0;
  for (;;) {
    stream.next_in = in.data() + read;
    stream.avail_in = clip32(in.size() - read);
    stream.next_out = out.data() + written;
    stream.avail_out = clip32(out.size() - written);
    const uint32_t in_before = stream.avail_in;
    const uint32_t out_before = stream.avail_out;
    const int32_t status = zng_inflate(&stream, kNoFlush);
    read += in_before - stream.avail_in;
    written += out_before - stream.avail_out;
    if (status == kStreamEnd) break;
    const bool progress = stream.avail_in != in_before || stream.avail_out != out_before;
    if (status == kBufferError || (status == kOk && !progress)) {
      if (read == in.size()) {
        throw_corrupt(std::string(name) + " data ends after " + std::to_string(written) + " of at most " +
                      std::to_string(out.size()) + " bytes");
      }
      throw_corrupt(std::string(name) + " data decodes to more than the " + std::to_string(out.size()) +
                    " bytes that the metadata implies");
    }
    if (status != kOk) {
      throw_corrupt(std::string(name) +
                    " data is corrupt: " + (stream.msg != nullptr ? stream.msg : "status " + std::to_string(status)));
    }
  }
  in = in.subspan(read);
  return written;
}

}  // namespace

size_t decode_zlib(Bytes in, MutableBytes out, DecodeScratch& scratch) {
  return inflate_stream(in, out, scratch, kZlibWindow, "zlib");
}

size_t decode_gzip(Bytes in, MutableBytes out, DecodeScratch& scratch) {
  // A gzip file may have several members, and zero bytes as padding behind the last one.
  size_t written = inflate_stream(in, out, scratch, kGzipWindow, "gzip");
  for (;;) {
    const auto next = std::find_if(in.begin(), in.end(), [](uint8_t b) { return b != 0; });
    if (next == in.end()) return written;
    in = in.subspan(static_cast<size_t>(next - in.begin()));
    written += inflate_stream(in, out.subspan(written), scratch, kGzipWindow, "gzip");
  }
}

}  // namespace zarrfeed
