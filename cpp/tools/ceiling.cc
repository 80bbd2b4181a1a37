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

/// The chunks along the sample axis, of all parts of the array.
size_t chunks_along(const ArraySource& source) {
  const ArrayParts* const parts = source.array().parts.get();
  if (parts == nullptr) return static_cast<size_t>(ceil_div(source.num_rows(), source.rows_per_chunk()));
  return static_cast<size_t>(parts->first_chunk.back() +
                             ceil_div(parts->end.back() - parts->begin.back(), source.rows_per_chunk()));
}

/// The rows of the array that a chunk has.
int64_t rows_of_chunk(const ArraySource& source, int64_t chunk) {
  const ArrayParts* const parts = source.array().parts.get();
  const int64_t end = parts == nullptr ? source.num_rows() : parts->end[parts->part_of(chunk)];
  return std::min(source.rows_per_chunk(), end - source.first_row(chunk));
}

/// Writes to every page, so that the measurement does not pay for fresh memory.
void touch(MutableBytes memory) {
  for (size_t i = 0; i < memory.size(); i += 4096) memory[i] = 0;
}

}  // namespace

CeilingResult measure_ceiling(const FieldSpec& field, const CeilingOptions& options) {
  const Output output(field);
  const std::shared_ptr<ChunkReader> reader = open_local(output);
  const ArraySource& source = *output.source();
  const ArraySpec& array = source.array();
  const int64_t rows = source.rows_per_chunk();
  const size_t along = chunks_along(source);
  for (const int64_t block : options.blocks) {
    if (block < 0 || block >= static_cast<int64_t>(along)) {
      throw Error(ErrorKind::kConfig,
                  "block " + std::to_string(block) + ", must be in [0, " + std::to_string(along) + ")");
    }
  }
  const size_t chunks = (options.blocks.empty() ? along : options.blocks.size()) * source.num_cells();
  const std::vector<int64_t> order = permutation(chunks, 1);
  const size_t window = std::max<size_t>(1, options.window_chunks / options.num_threads);
  const size_t of_chunk = static_cast<size_t>(rows) * options.copies;  // slots
  const std::vector<int64_t> slots = permutation(window * of_chunk, 2);

  const bool streaming = options.num_threads * slots.size() * output.sample_bytes() > (size_t{32} << 20);

  Stats stats;
  std::atomic<size_t> next{0};

  const Elapsed elapsed = run_timed(options.num_threads, [&](const std::function<void()>& await_start) {
    WorkerScratch scratch;
    BufferPool memory(slots.size() * output.sample_bytes(), false);
    uint8_t* const base = options.scatter ? memory.acquire() : nullptr;
    if (base != nullptr) touch({base, memory.buffer_bytes()});
    touch(scratch.decoded.reserve(source.decoded_bytes()));
    const CodecPipeline pipeline(array.codecs, source.decoded_bytes());
    await_start();
    for (size_t turn = 0, i = 0; (i = next.fetch_add(1)) < chunks; turn = (turn + 1) % window) {
      const int64_t index = order[i] / static_cast<int64_t>(source.num_cells());
      const int64_t chunk = options.blocks.empty() ? index : options.blocks[static_cast<size_t>(index)];
      const size_t cell = static_cast<size_t>(order[i]) % source.num_cells();
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
        named([&] { pipeline.decode(stored, scratch.decoded.reserve(source.decoded_bytes()), scratch.codecs); });
        stats.chunk_bytes += source.decoded_bytes();
        stats.bytes_read += stored.size();
        continue;
      }
      scratch.targets.clear();
      const int64_t first = source.first_row(chunk);
      const auto copies = static_cast<size_t>(rows_of_chunk(source, chunk)) * options.copies;
      for (size_t copy = 0; copy < copies; ++copy) {
        const auto slot = static_cast<size_t>(slots[turn * of_chunk + copy]);
        const auto row = static_cast<int64_t>(copy / options.copies);
        scratch.targets.push_back({first + row, base + slot * output.sample_bytes()});
      }
      const OutputRows of_output{&output, scratch.targets.size()};
      named([&] {
        decode_and_scatter(chunk, cell, stored, {&of_output, 1}, scratch.targets, streaming, scratch, stats);
      });
    }
  });
  return {elapsed.seconds, elapsed.cpu_seconds, stats.chunk_bytes, stats.bytes_read};
}

}  // namespace zarrfeed
