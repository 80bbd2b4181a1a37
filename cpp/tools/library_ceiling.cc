#include "tools/library_ceiling.h"

#include <blosc2.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/division.h"
#include "base/error.h"
#include "codecs/codec.h"
#include "engine/chunks/buffer_pool.h"
#include "spec/array_spec.h"
#include "spec/codec_spec.h"
#include "tools/local_reader.h"
#include "tools/timed_threads.h"

namespace zarrfeed {
namespace {

constexpr int32_t kFinish = 4;  // Z_FINISH: all of the input is there

/// The functions of Blosc's shared library. It stays loaded: other threads of the process may use it, too.
struct BloscFunctions {
  explicit BloscFunctions(const std::string& path) {
    if (path.empty()) throw Error(ErrorKind::kConfig, "Blosc's chunks need blosc2_library, the path of libblosc2.so");
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Error(ErrorKind::kConfig, std::string("blosc2_library: ") + dlerror());
    find(library, "blosc2_create_dctx", create_dctx);
    find(library, "blosc2_decompress_ctx", decompress_ctx);
    find(library, "blosc2_free_ctx", free_ctx);
  }

  decltype(&blosc2_create_dctx) create_dctx = nullptr;
  decltype(&blosc2_decompress_ctx) decompress_ctx = nullptr;
  decltype(&blosc2_free_ctx) free_ctx = nullptr;

 private:
  template <typename Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw Error(ErrorKind::kConfig, std::string("blosc2_library has no ") + name);
  }
};

/// One context of a codec's library, and its call.
class Library {
 public:
  /// `blosc` must outlive it; not null if the codec is Blosc.
  Library(std::string codec, const BloscFunctions* blosc) : codec_(std::move(codec)), blosc_functions_(blosc) {
    if (codec_ == "blosc") {
      blosc2_dparams parameters = BLOSC2_DPARAMS_DEFAULTS;
      parameters.nthreads = 1;
      blosc_ = {blosc->create_dctx(parameters), blosc->free_ctx};
    } else if (codec_ == "zstd") {
      zstd_.reset(ZSTD_createDCtx());
    }
  }

  /// True if the chunk decoded to all of `out`.
  bool decompress(Bytes in, MutableBytes out) {
    if (codec_ == "blosc") {
      return blosc_functions_->decompress_ctx(blosc_.get(), in.data(), static_cast<int32_t>(in.size()), out.data(),
                                              static_cast<int32_t>(out.size())) == static_cast<int>(out.size());
    }
    if (codec_ == "zstd") {
      return ZSTD_decompressDCtx(zstd_.get(), out.data(), out.size(), in.data(), in.size()) == out.size();
    }
    if (codec_ == "gzip" || codec_ == "zlib") return inflate(in, out);
    if (codec_ == "lz4") {
      return in.size() > 4 &&  // the frame of numcodecs begins with the size
             LZ4_decompress_safe(reinterpret_cast<const char*>(in.data() + 4), reinterpret_cast<char*>(out.data()),
                                 static_cast<int>(in.size() - 4),
                                 static_cast<int>(out.size())) == static_cast<int>(out.size());
    }
    return false;
  }

 private:
  [[nodiscard]] bool inflate(Bytes in, MutableBytes out) const {
    zng_stream stream{};
    if (zng_inflateInit2(&stream, codec_ == "gzip" ? 15 + 16 : 15) != 0) return false;
    stream.next_in = in.data();
    stream.avail_in = static_cast<uint32_t>(in.size());
    stream.next_out = out.data();
    stream.avail_out = static_cast<uint32_t>(out.size());
    zng_inflate(&stream, kFinish);
    const bool is_whole = stream.total_out == out.size();
    zng_inflateEnd(&stream);
    return is_whole;
  }

  std::string codec_;
  const BloscFunctions* blosc_functions_;
  std::unique_ptr<blosc2_context, void (*)(blosc2_context*)> blosc_{nullptr, nullptr};
  std::unique_ptr<ZSTD_DCtx_s, decltype(&ZSTD_freeDCtx)> zstd_{nullptr, &ZSTD_freeDCtx};
};

/// The part of a sample that one cell of the chunk grid holds: runs of bytes that are contiguous on both sides.
struct CellCopy {
  size_t row_bytes = 0;  ///< of a row in the decoded chunk
  size_t run_bytes = 0;
  std::vector<std::pair<size_t, size_t>> runs;  ///< where each begins: in the row, and in the sample
};

std::vector<CellCopy> make_copies(const ArraySpec& array) {
  const size_t axes = array.shape.size();
  std::vector<int64_t> counts(axes, 1);
  int64_t cells = 1;
  for (size_t a = 1; a < axes; ++a) {
    counts[a] = ceil_div(array.shape[a], array.chunk_shape[a]);
    cells *= counts[a];
  }
  // Axes from `whole` on are not cut: with the one before, they are one run.
  size_t whole = axes;
  while (whole > 1 && counts[whole - 1] == 1 && array.chunk_shape[whole - 1] == array.shape[whole - 1]) --whole;
  size_t item = array.item_bytes;
  for (size_t a = whole; a < axes; ++a) item *= static_cast<size_t>(array.shape[a]);
  std::vector<CellCopy> copies;
  for (int64_t cell = 0; cell < cells; ++cell) {
    CellCopy copy{item, item, {{0, 0}}};
    size_t in_sample = item;
    int64_t rest = cell;
    for (size_t a = whole; a-- > 1;) {
      const int64_t first = rest % counts[a] * array.chunk_shape[a];
      rest /= counts[a];
      const int64_t valid = std::min(array.chunk_shape[a], array.shape[a] - first);
      const size_t begin = static_cast<size_t>(first) * in_sample;
      if (a + 1 == whole) {
        copy.run_bytes = static_cast<size_t>(valid) * item;
        copy.runs = {{0, begin}};
      } else {
        std::vector<std::pair<size_t, size_t>> runs;
        for (int64_t i = 0; i < valid; ++i) {
          for (const auto& [from, to] : copy.runs) {
            runs.emplace_back(static_cast<size_t>(i) * copy.row_bytes + from,
                              begin + static_cast<size_t>(i) * in_sample + to);
          }
        }
        copy.runs = std::move(runs);
      }
      copy.row_bytes *= static_cast<size_t>(array.chunk_shape[a]);
      in_sample *= static_cast<size_t>(array.shape[a]);
    }
    copies.push_back(std::move(copy));
  }
  return copies;
}

void check_field(const FieldSpec& field) {
  const ArraySpec& array = field.array;
  const bool in_order = std::is_sorted(array.storage_order.begin(), array.storage_order.end());
  const bool one_codec = array.codecs.size() == 1 && array.codecs[0].name != "crc32c";
  if (field.kind != FieldSpec::Kind::kStored || array.in_python || !one_codec || field.conversion || !in_order ||
      array.sample_axis != 0 || array.swap_bytes != 0) {
    throw Error(ErrorKind::kConfig, array.name + ": one call of a codec's library does not make samples of its chunks");
  }
}

}  // namespace

CeilingResult measure_library_ceiling(const FieldSpec& field, const LibraryCeilingOptions& options) {
  check_field(field);
  std::optional<BloscFunctions> blosc;
  if (field.array.codecs[0].name == "blosc") blosc.emplace(options.blosc2_library);
  const Output output(field);
  const std::shared_ptr<ChunkReader> reader = open_local(output);
  const ArraySpec& array = field.array;
  const int64_t rows = output.source()->rows_per_chunk();
  const int64_t samples = array.shape[0];
  const std::vector<CellCopy> copies = make_copies(array);
  const size_t sample_bytes = output.sample_bytes();

  std::mt19937_64 random(1);
  std::vector<size_t> order(static_cast<size_t>(ceil_div(samples, rows)) * copies.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  const size_t window = std::max<size_t>(1, options.window_chunks / options.num_threads);
  std::vector<size_t> slots(window * static_cast<size_t>(rows));
  std::iota(slots.begin(), slots.end(), size_t{0});
  std::shuffle(slots.begin(), slots.end(), random);

  std::atomic<uint64_t> bytes_decoded{0};
  std::atomic<uint64_t> bytes_read{0};
  std::atomic<size_t> next{0};

  const Elapsed elapsed = run_timed(options.num_threads, [&](const std::function<void()>& await_start) {
    Library library(array.codecs[0].name, blosc ? &*blosc : nullptr);
    Buffer stored;
    Buffer decoded;
    BufferPool memory(slots.size() * sample_bytes, false);
    uint8_t* const base = options.out != nullptr ? options.out : memory.acquire();
    if (options.out == nullptr) std::memset(base, 0, memory.buffer_bytes());
    const MutableBytes chunk_bytes = decoded.reserve(output.source()->decoded_bytes());
    std::memset(chunk_bytes.data(), 0, chunk_bytes.size());
    await_start();
    for (size_t turn = 0, i = 0; (i = next.fetch_add(1)) < order.size(); turn = (turn + 1) % window) {
      const auto chunk = static_cast<int64_t>(order[i] / copies.size());
      const size_t cell = order[i] % copies.size();
      const ReadResult read = read_chunk(*reader, chunk, cell, stored);
      if (read.status == ReadStatus::kMissing) continue;
      if (!library.decompress(read.bytes, chunk_bytes)) {
        throw Error(ErrorKind::kCorrupt, "the codec's library does not decode it")
            .at(array.name, reader->label(chunk, cell));
      }
      const CellCopy& copy = copies[cell];
      const int64_t valid = std::min(rows, samples - chunk * rows);
      for (int64_t r = 0; r < valid; ++r) {
        const auto row = static_cast<size_t>(r);
        const size_t slot = options.out != nullptr ? static_cast<size_t>(chunk * rows + r)
                                                   : slots[turn * static_cast<size_t>(rows) + row];
        for (const auto& [from, to] : copy.runs) {
          std::memcpy(base + slot * sample_bytes + to, chunk_bytes.data() + row * copy.row_bytes + from,
                      copy.run_bytes);
        }
      }
      bytes_decoded += chunk_bytes.size();
      bytes_read += read.bytes.size();
    }
  });
  return {elapsed.seconds, elapsed.cpu_seconds, bytes_decoded, bytes_read};
}

}  // namespace zarrfeed
