#include "engine/slot_writer.h"

#include <cerrno>
#include <memory>
#include <ranges>

#include "engine/window_rows.h"
#include "transform/few_blocks.h"
#include "transform/wanted_parts.h"

namespace zarrfeed {

std::shared_ptr<const ChunkParts> SlotWriter::find_parts(const Task& task, const ChunkReader& reader,
                                                         WorkerScratch& scratch) const {
  if (task.reads_whole) return nullptr;
  const PartCosts& costs = reader.limits().part_costs;
  const auto& source = outputs_[task.of_outputs.front().output].shared_source();
  if (!WantedParts::has_parts(*source, costs)) return nullptr;
  const bool are_patches = outputs_[task.of_outputs.front().output].patches() != nullptr;
  const auto of_all_rows = [&]() -> std::shared_ptr<const ChunkParts> {
    if (!source->has_chosen() || are_patches) return nullptr;
    return WantedParts::of_rows(source, task.cell, source->all_rows(task.chunk), costs);
  };
  if (task.decodes_carried) {
    const ChunkCrop* const crop = task.carried->crop();
    return crop == nullptr ? of_all_rows() : WantedParts::of_crops(source, {*crop}, costs);
  }
  const size_t row_bytes = source->decoded_bytes() / static_cast<size_t>(source->rows_per_chunk());
  for (const TaskRows& one : task.of_outputs) {
    const Output& output = outputs_[one.output];
    const size_t count = one.end - one.begin;
    const size_t most_bytes = output.patches() != nullptr ? output.patches()->most_bytes_of_chunk() : row_bytes;
    if (one.rows == nullptr) return of_all_rows();
    if (source->has_chosen() && !are_patches) continue;
    if (may_be_most(count, most_bytes, *source)) return nullptr;
    if (output.is_direct() && 2 * count * row_bytes > source->decoded_bytes()) return nullptr;
  }
  if (cache_ != nullptr && cache_->will_admit({task.source, task.chunk, task.cell}, source->decoded_bytes())) {
    return nullptr;
  }
  if (!list_targets(task, scratch)) return nullptr;
  if (are_patches) {
    return WantedParts::of_crops(source, list_crops({task.chunk, task.cell}, scratch.outputs, scratch.patches), costs);
  }
  std::vector<int64_t> rows;
  rows.reserve(scratch.targets.size());
  for (const RowTarget& t : scratch.targets) rows.push_back(t.row - source->first_row(task.chunk));
  return WantedParts::of_rows(source, task.cell, join_items(std::move(rows)), costs);
}

void SlotWriter::write(Task& task, const ChunkReader& reader, WorkerScratch& scratch) {
  const ArraySource& source = source_of(task);
  const ChunkCache::Key key{task.source, task.chunk, task.cell};
  const PatchCell at{task.chunk, task.cell};
  const bool is_missing = task.status == ReadStatus::kMissing;
  if (is_missing && missing_is_error_) {
    throw reader.at_chunk(Error::io("is missing from the store", ENOENT), task.chunk, task.cell);
  }
  if (task.undecoded != nullptr) decode_undecoded(task, reader, scratch);
  if (decode_carried(task, reader, scratch)) return;
  // A chunk of a store on the network is not read again for the sake of some blocks.
  const bool has_parts = !task.stored.is_whole();
  const bool less_would_do = has_parts || (cache_ != nullptr && !is_missing && reader.limits().can_try &&
                                           wants_few_blocks(task, reader, scratch));
  if (cache_ != nullptr && cache_->admits(key, is_missing ? 0 : source.decoded_bytes(), less_would_do) && !has_parts) {
    auto chunk = std::make_shared<DecodedChunk>();
    if (!is_missing)
      *chunk = name_errors(task, reader, [&] { return source.decode(at, task.stored, scratch, stats_); });
    if (is_missing) stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
    cache_->insert(key, chunk);
    scatter(task, chunk->bytes.get(), scratch, false);
  } else if (is_missing) {
    scatter(task, nullptr, scratch, false);
    stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
  } else {
    decode(task, reader, scratch);
  }
}

void SlotWriter::decode_undecoded(Task& task, const ChunkReader& reader, WorkerScratch& scratch) {
  const StageTimer timer(stats_.decode_ns);
  const size_t stored_bytes = task.stored.size();
  const Bytes decoded =
      name_errors(task, reader, [&] { return task.undecoded->decode(task.stored.whole(), scratch.codecs); });
  task.stored = decoded;
  // Whoever decodes it counts the chunk as it is now.
  stats_.bytes_read.fetch_add(stored_bytes - decoded.size(), std::memory_order_relaxed);
  stats_.stored_bytes.fetch_add(stored_bytes - decoded.size(), std::memory_order_relaxed);
}

void SlotWriter::decode(const Task& task, const ChunkReader& reader, WorkerScratch& scratch) {
  if (!list_targets(task, scratch)) {  // so many rows that they are found after the chunk was decoded
    const Bytes decoded = name_errors(task, reader, [&] {
      return source_of(task).decode_in_scratch({task.chunk, task.cell}, task.stored, scratch, stats_);
    });
    scatter(task, decoded.data(), scratch, streaming_);
    return;
  }
  name_errors(task, reader, [&] {
    if (scratch.outputs.front().output->patches() != nullptr) {
      decode_and_cut({task.chunk, task.cell}, task.stored, scratch.outputs, scratch.patches, scratch, stats_);
    } else {
      decode_and_scatter(task.chunk, task.cell, task.stored, scratch.outputs, scratch.targets, streaming_, scratch,
                         stats_);
    }
  });
}

bool SlotWriter::wants_few_blocks(const Task& task, const ChunkReader& reader, WorkerScratch& scratch) const {
  const ArraySource& source = source_of(task);
  if (!source.pipeline().is_blosc() || !list_targets(task, scratch)) return false;
  for (RowTarget& t : scratch.targets) t.row -= source.first_row(task.chunk);
  return name_errors(task, reader, [&] {
    return scratch.outputs.front().output->patches() != nullptr
               ? touch_few_blocks({task.chunk, task.cell}, task.stored, scratch.outputs, scratch.patches, scratch)
               : touch_few_blocks(task.cell, task.stored, scratch.outputs, scratch.targets, scratch);
  });
}

bool SlotWriter::list_targets(const Task& task, WorkerScratch& scratch) const {
  scratch.targets.clear();
  scratch.outputs.clear();
  const bool are_patches = outputs_[task.of_outputs.front().output].patches() != nullptr;
  for (const TaskRows& one : task.of_outputs) {
    const Output& output = outputs_[one.output];
    if (one.rows == nullptr || (output.patches() != nullptr) != are_patches) return false;
    find_targets(one.output, one.placements(), scratch.targets);
    scratch.outputs.push_back({&output, one.end - one.begin});
  }
  if (are_patches) find_patches(scratch);
  return true;
}

bool SlotWriter::decode_carried(Task& task, const ChunkReader& reader, WorkerScratch& scratch) {
  if (!task.decodes_carried) return false;
  const CarriedChunk& chunk = *task.carried;
  if (task.status == ReadStatus::kMissing) {
    stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
    resume(CarriedChunk::finish(task, nullptr));
    write_carried(task, scratch);
    return true;
  }
  CarryMemory& memory = chunk.memory();
  uint8_t* const bytes = memory.acquire(task.source, chunk.crop_room());
  if (bytes == nullptr) {
    resume(CarriedChunk::give_up(task));
    return false;
  }
  const uint8_t* decoded = nullptr;
  try {
    decoded = name_errors(task, reader, [&] { return decode_to(task, bytes, scratch); });
  } catch (...) {
    memory.release(task.source, bytes, chunk.crop_room());
    throw;
  }
  resume(CarriedChunk::finish(task, bytes));
  if (decoded == bytes) {
    write_carried(task, scratch);
  } else if (decoded != nullptr) {
    scatter(task, decoded, scratch, streaming_);
  }
  return true;
}

const uint8_t* SlotWriter::decode_to(const Task& task, uint8_t* carried, WorkerScratch& scratch) {
  const ArraySource& source = source_of(task);
  const PatchCell at{task.chunk, task.cell};
  const ChunkCrop* const crop = task.carried->crop();
  const bool are_rows = outputs_[task.of_outputs.front().output].patches() == nullptr;
  if (are_rows && (crop != nullptr || task.stored.is_whole()) && list_targets(task, scratch) &&
      scatters_blocks(task.cell, scratch.outputs)) {
    DecodedCopy copy{carried, 0, source.decoded_bytes()};
    if (crop != nullptr) {
      const auto axis = static_cast<size_t>(source.array().sample_axis);
      const size_t row_bytes = source.decoded_bytes() / static_cast<size_t>(source.rows_per_chunk());
      copy.begin = static_cast<size_t>(crop->begin[axis]) * row_bytes;
      copy.end = static_cast<size_t>(crop->end[axis]) * row_bytes;
    }
    decode_and_scatter(task.chunk, task.cell, task.stored, scratch.outputs, scratch.targets, streaming_, scratch,
                       stats_, copy);
    return nullptr;
  }
  if (crop != nullptr) {
    if (source.decode_crop(task.stored, *crop, carried, scratch, stats_)) return carried;
    const Bytes whole = source.decode_in_scratch(at, task.stored, scratch, stats_,
                                                 are_rows ? crop_bytes(source.array(), *crop) : SIZE_MAX);
    const StageTimer timer(stats_.scatter_ns);
    copy_crop(source.array(), *crop, whole.data(), carried);
    return whole.data();
  }
  source.decode_into(at, task.stored, {carried, source.decoded_bytes()}, scratch, stats_);
  return carried;
}

void SlotWriter::write_carried(const Task& task, WorkerScratch& scratch) {
  scatter(task, task.carried->bytes(), scratch, streaming_, task.carried->crop());
}

bool SlotWriter::write_cached(Task& task, WorkerScratch& scratch) {
  if (cache_ == nullptr) return false;
  const auto chunk = cache_->find({task.source, task.chunk, task.cell});
  if (chunk == nullptr) return false;
  resume(CarriedChunk::give_up(task));  // tasks that wait for this one find the chunk in the cache, too
  scatter(task, chunk->bytes.get(), scratch, false);
  return true;
}

void SlotWriter::write_without_chunk(const Task& task, WorkerScratch& scratch) {
  const TaskRows& of_output = task.of_outputs.front();
  const Output& output = outputs_[of_output.output];
  if (task.pads && task.cell != 0) return;  // the task of cell 0 writes rows whole
  const StageTimer timer(stats_.scatter_ns);
  for_rows(task, of_output, [&](auto rows) {
    const auto targets = targets_of(of_output.output, rows, scratch);
    if (task.pads && output.patches() != nullptr) {
      find_patches(scratch);
      output.patches()->pad(scratch.patches);
    } else if (task.pads) {
      output.scatter_pad(targets);
    } else {
      if (plan_->patches != nullptr && output.spec().kind == FieldSpec::Kind::kIndex) {  // what the user calls them
        for (auto& t : targets) t.row = plan_->patches->number(t.row);
      }
      output.scatter_resident(targets);
    }
  });
}

void SlotWriter::scatter(const Task& task, const uint8_t* decoded, WorkerScratch& scratch, bool streaming,
                         const ChunkCrop* crop) {
  const StageTimer timer(stats_.scatter_ns);
  for (const TaskRows& of_output : task.of_outputs) {
    const Output& output = outputs_[of_output.output];
    for_rows(task, of_output, [&](auto rows) {
      const auto targets = targets_of(of_output.output, rows, scratch);
      if (output.patches() != nullptr) {
        find_patches(scratch);
        const size_t written = output.patches()->cut({task.chunk, task.cell}, decoded, scratch.patches, crop);
        if (decoded != nullptr) stats_.bytes_scattered.fetch_add(written, std::memory_order_relaxed);
      } else if (decoded == nullptr) {
        output.scatter_fill(task.cell, targets);
      } else {
        const auto axis = static_cast<size_t>(output.source()->array().sample_axis);
        const int64_t before = crop == nullptr ? 0 : crop->begin[axis];
        output.scatter_decoded(output.source()->first_row(task.chunk) + before, task.cell, decoded, targets, stats_,
                               streaming);
      }
    });
  }
}

void SlotWriter::find_rows(size_t output, std::span<const Placement> samples, int64_t chunk,
                           std::vector<RowStretch>& rows) const {
  WindowRows(outputs_[output], *plan_).find(samples, chunk, rows);
}

void SlotWriter::find_patches(WorkerScratch& scratch) const {
  scratch.patches.clear();
  for (const RowTarget& t : scratch.targets) {
    scratch.patches.push_back({plan_->patches->start(t.row), t.dest, draw_orientation(*plan_, t.row)});
  }
}

void SlotWriter::count_rows(std::span<const Placement> samples, std::span<const Task> tasks) const {
  for (const Task& task : tasks) {
    for (const TaskRows& one : task.of_outputs) {
      for_rows(task, one, [&](auto rows) { ring_->add(rows, rows_per_sample(one.output)); });
    }
  }
  ring_->finish(samples, 1, on_complete_);
}

}  // namespace zarrfeed
