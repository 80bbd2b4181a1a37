#include "tools/ceiling.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/division.h"
#include "base/error.h"
#include "engine/chunks/buffer_pool.h"
#include "plan/row_order.h"
#include "spec/array_spec.h"
#include "tools/local_reader.h"
#include "tools/timed_threads.h"

namespace zarrfeed {
namespace {

std::vector<int64_t> permutation(size_t n, uint64_t purpose) {
  std::vector<int64_t> out(n);
  const uint64_t key[] = {purpose, n};
  random_permutation(KeyedRandom(key), out);
  return out;
}

/// Writes to every page, so that the measurement does not pay for fresh memory.
void touch(MutableBytes memory) {
  for (size_t i = 0; i < memory.size(); i += 4096) memory[i] = 0;
}

}  // namespace

CeilingResult measure_ceiling(const FieldSpec& field, const CeilingOptions& options) {
  const FieldDecoder decoder(field);
  const std::shared_ptr<ChunkReader> reader = open_local(decoder);
  const ArraySpec& array = field.array;
  const int64_t rows = decoder.rows_per_chunk();
  const int64_t samples = array.shape[static_cast<size_t>(array.sample_axis)];
  const auto along = static_cast<size_t>(ceil_div(samples, rows));
  for (const int64_t block : options.blocks) {
    if (block < 0 || block >= static_cast<int64_t>(along)) {
      throw Error(ErrorKind::kConfig,
                  "block " + std::to_string(block) + ", must be in [0, " + std::to_string(along) + ")");
    }
  }
  const size_t chunks = (options.blocks.empty() ? along : options.blocks.size()) * decoder.num_cells();
  const std::vector<int64_t> order = permutation(chunks, 1);
  const size_t window = std::max<size_t>(1, options.window_chunks / options.num_threads);
  const std::vector<int64_t> slots = permutation(window * static_cast<size_t>(rows), 2);

  const bool streaming = options.num_threads * slots.size() * decoder.sample_bytes() > (size_t{32} << 20);

  Stats stats;
  std::atomic<size_t> next{0};

  const double seconds = run_timed(options.num_threads, [&](const std::function<void()>& await_start) {
    WorkerScratch scratch;
    BufferPool memory(slots.size() * decoder.sample_bytes(), false);
    uint8_t* const base = options.scatter ? memory.acquire() : nullptr;
    if (base != nullptr) touch({base, memory.buffer_bytes()});
    touch(scratch.decoded.reserve(decoder.decoded_bytes()));
    const CodecPipeline pipeline(array.codecs, decoder.decoded_bytes());
    await_start();
    for (size_t turn = 0, i = 0; (i = next.fetch_add(1)) < chunks; turn = (turn + 1) % window) {
      const int64_t index = order[i] / static_cast<int64_t>(decoder.num_cells());
      const int64_t chunk = options.blocks.empty() ? index : options.blocks[static_cast<size_t>(index)];
      const size_t cell = static_cast<size_t>(order[i]) % decoder.num_cells();
      const ReadResult read = read_chunk(*reader, chunk, cell, scratch.stored);
      if (read.status == ReadStatus::kMissing) continue;
      const Bytes stored = read.bytes;
      const auto named = [&](const auto& decode) {
        try {
          decode();
        } catch (const Error& bad) {
          throw bad.at(array.name, reader->label(chunk, cell));
        }
      };
      if (!options.scatter) {
        named([&] { pipeline.decode(stored, scratch.decoded.reserve(decoder.decoded_bytes()), scratch.codecs); });
        stats.bytes_decoded += decoder.decoded_bytes();
        stats.bytes_read += stored.size();
        continue;
      }
      scratch.targets.clear();
      const int64_t valid = std::min(rows, samples - chunk * rows);
      for (int64_t r = 0; r < valid; ++r) {
        const auto slot = static_cast<size_t>(slots[turn * static_cast<size_t>(rows) + static_cast<size_t>(r)]);
        scratch.targets.push_back({chunk * rows + r, base + slot * decoder.sample_bytes()});
      }
      named([&] { decoder.decode_and_scatter(chunk, cell, stored, scratch.targets, streaming, scratch, stats); });
    }
  });
  return {seconds, stats.bytes_decoded, stats.bytes_read};
}

}  // namespace zarrfeed
