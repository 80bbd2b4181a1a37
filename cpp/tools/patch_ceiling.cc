#include "tools/patch_ceiling.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "engine/chunks/buffer_pool.h"
#include "plan/row_order.h"
#include "tools/local_reader.h"
#include "tools/timed_threads.h"

namespace zarrfeed {
namespace {

/// A chunk, and a patch that has items of it.
struct Piece {
  PatchCell cell;
  size_t patch;
};

/// The pieces of one chunk, or of what patches have beyond the volume: their chunk is -1.
struct Unit {
  size_t begin;
  size_t end;
};

std::vector<Piece> find_pieces(const PatchCopy& cutter, std::span<const PatchStart> patches) {
  std::vector<Piece> pieces;
  std::vector<PatchCell> cells;
  for (size_t p = 0; p < patches.size(); ++p) {
    if (!cutter.has(patches[p].volume)) throw Error(ErrorKind::kConfig, "a patch begins in a volume that is not there");
    cells.clear();
    cutter.find_cells(patches[p], cells);
    if (cutter.reaches_out(patches[p])) cells.push_back({-1, 0});
    for (const PatchCell& cell : cells) pieces.push_back({cell, p});
  }
  std::ranges::stable_sort(pieces, {}, &Piece::cell);
  return pieces;
}

/// Groups pieces by chunk; the units are in random order.
std::vector<Unit> shuffled_units(const std::vector<Piece>& pieces) {
  std::vector<Unit> units;
  for (size_t from = 0; from < pieces.size(); from = units.back().end) {
    size_t to = from + 1;
    while (to < pieces.size() && pieces[to].cell == pieces[from].cell) ++to;
    units.push_back({from, to});
  }
  const uint64_t key[] = {3, units.size()};
  std::vector<int64_t> order(units.size());
  random_permutation(KeyedRandom(key), order);
  std::vector<Unit> shuffled;
  for (const int64_t unit : order) shuffled.push_back(units[static_cast<size_t>(unit)]);
  return shuffled;
}

}  // namespace

CeilingResult measure_patch_ceiling(const FieldSpec& field, std::span<const PatchStart> patches,
                                    const PatchCeilingOptions& options) {
  const Output output(field);
  const PatchCopy* const cutter = output.patches();
  if (cutter == nullptr) throw Error(ErrorKind::kConfig, field.array.name + ": its samples are not patches");
  const std::shared_ptr<ChunkReader> reader = open_local(output);
  const ArraySource& source = *output.source();
  const std::vector<Piece> pieces = find_pieces(*cutter, patches);
  const std::vector<Unit> units = shuffled_units(pieces);
  const size_t window = std::clamp<size_t>(options.window_patches, 1, std::max<size_t>(1, patches.size()));

  Stats stats;
  std::atomic<size_t> next{0};
  const Elapsed elapsed = run_timed(options.num_threads, [&](const std::function<void()>& await_start) {
    WorkerScratch scratch;
    BufferPool memory(window * cutter->sample_bytes(), false);
    uint8_t* const own = options.out != nullptr ? nullptr : memory.acquire();
    if (own != nullptr) std::fill_n(own, memory.buffer_bytes(), uint8_t{0});  // so that fresh memory is not measured
    const MutableBytes room = scratch.decoded.reserve(source.decoded_bytes());
    std::ranges::fill(room, uint8_t{0});
    await_start();
    for (size_t i = 0; (i = next.fetch_add(1)) < units.size();) {
      const PatchCell cell = pieces[units[i].begin].cell;
      scratch.patches.clear();
      for (size_t p = units[i].begin; p < units[i].end; ++p) {
        const size_t patch = pieces[p].patch;
        uint8_t* const dest = own != nullptr ? own + patch % window * cutter->sample_bytes()
                                             : options.out + patch * cutter->sample_bytes();
        scratch.patches.push_back({patches[patch], dest});
      }
      if (cell.chunk < 0) {
        cutter->pad(scratch.patches);
        continue;
      }
      try {
        const ReadResult read = read_chunk(*reader, cell.chunk, cell.cell, scratch.stored);
        if (read.status == ReadStatus::kMissing) {
          cutter->cut(cell, nullptr, scratch.patches);
        } else {
          const Bytes decoded = source.decode_in_scratch({}, read.bytes, scratch, stats);
          cutter->cut(cell, decoded.data(), scratch.patches);
        }
      } catch (const Error& bad) {
        throw bad.at(field.array.name, reader->label(cell.chunk, cell.cell));
      }
    }
  });
  return {elapsed.seconds, elapsed.cpu_seconds, stats.chunk_bytes, stats.bytes_read};
}

}  // namespace zarrfeed
