#pragma once
// The slot writer: decodes the chunk of a task, or takes it from where it is cached or carried, and writes its rows to
// the slots of all outputs that draw from it. It also writes rows that lie in memory, and padding.
//
// It holds no mutex, and knows no queue and no thread. Invariants:
//   * Between begin_epoch() and the end of the epoch, all functions may be called from several threads at once, each
//     with a scratch and a task of its own.
//   * Tasks write disjoint bytes (task_builder.h), and only to batches that are open: the engine makes tasks of steps
//     that it claimed in the ring.
//   * Nothing is published before finish(), which a thread calls after it wrote the rows of a task, or after it gave
//     them up.
//   * A chunk that tasks share is handed to them as soon as it is decoded: before the task that decodes it copies its
//     own rows, unless these are written as the chunk is decoded. Tasks that waited for the chunk go to `resume`, also
//     if the chunk cannot be decoded.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "base/stats.h"
#include "base/stored_bytes.h"
#include "engine/batch_ring.h"
#include "engine/chunks/carried_chunk.h"
#include "engine/chunks/chunk_cache.h"
#include "engine/chunks/task.h"
#include "plan/placement.h"
#include "plan/row_order.h"
#include "storage/chunk_reader.h"
#include "transform/output_table.h"

namespace zarrfeed {

class SlotWriter {
 public:
  /// Takes tasks that waited for a shared chunk: they copy their rows, or decode the chunk themselves.
  using Resume = std::function<void(std::vector<Task>)>;
  /// Called with each batch that finish() completes.
  using OnComplete = std::function<void(int64_t batch)>;

  /// Borrows `outputs`, `cache`, which may be null, and `stats`.
  SlotWriter(const OutputTable& outputs, std::vector<size_t> tensor_of_output, ChunkCache* cache, bool missing_is_error,
             Stats& stats, Resume resume, OnComplete on_complete)
      : outputs_(outputs),
        tensor_of_output_(std::move(tensor_of_output)),
        cache_(cache),
        missing_is_error_(missing_is_error),
        stats_(stats),
        resume_(std::move(resume)),
        on_complete_(std::move(on_complete)) {}

  /// Begins an epoch, whose plan and ring it borrows. `streaming`: the open batches are larger than the processor's
  /// cache.
  void begin_epoch(const EpochPlan& plan, BatchRing& ring, bool streaming) {
    plan_ = &plan;
    ring_ = &ring;
    streaming_ = streaming;
  }

  /// Finds the parts of the stored chunk that are enough for a task, which then decodes no others. Null: all of the
  /// chunk is read.
  std::shared_ptr<const ChunkParts> find_parts(const Task& task, const ChunkReader& reader,
                                               WorkerScratch& scratch) const;
  /// Decodes the stored bytes of a task, and writes its rows. Errors name the array and the chunk, which `reader`
  /// knows.
  void write(Task& task, const ChunkReader& reader, WorkerScratch& scratch);
  /// Writes the rows of a task whose chunk another task decoded.
  void write_carried(const Task& task, WorkerScratch& scratch);
  /// Writes the rows of a task if its chunk is cached; returns whether it is.
  bool write_cached(Task& task, WorkerScratch& scratch);
  /// Writes rows that lie in memory, or are padded.
  void write_without_chunk(const Task& task, WorkerScratch& scratch);

  /// True if the chunk of a task is decoded already, for another task or in the cache. A cached chunk may be gone
  /// later.
  [[nodiscard]] bool is_decoded(const Task& task) const {
    if (task.carried != nullptr && !task.decodes_carried) return true;
    return cache_ != nullptr && cache_->contains({task.source, task.chunk, task.cell});
  }

  /// Counts the rows of a task as written.
  void finish(const Task& task) const {
    for (const TaskRows& one : task.of_outputs) {
      for_rows(task, one, [&](auto rows) { ring_->finish(rows, rows_per_sample(one.output), on_complete_); });
    }
  }
  /// Sets the number of unfinished rows of the samples of a group to the rows of its tasks. Before, each sample has one
  /// unfinished row, since its batch was opened without knowing the tasks.
  void count_rows(std::span<const Placement> samples, std::span<const Task> tasks) const;
  /// Calls take(row, sample) with each row of a task and the sample that it belongs to; rows of several outputs may
  /// belong to one sample.
  template <typename Take>
  void for_each_sample(const Task& task, const Take& take) const {
    std::vector<Placement> by_step = *task.samples;
    std::ranges::sort(by_step, {}, &Placement::step);
    for (const TaskRows& one : task.of_outputs) {
      auto last = by_step.cend();
      const auto take_row = [&](const Placement& row) {
        const int64_t step = row.step / rows_per_sample(one.output);
        if (last == by_step.cend() || last->step != step) {
          last = std::ranges::lower_bound(by_step, step, {}, &Placement::step);
        }
        take(row, *last);
      };
      for_rows(task, one, [&](const auto& rows) {
        for (const auto& row : rows) {
          if constexpr (std::is_same_v<decltype(row), const Placement&>) {
            take_row(row);
          } else {
            for (int64_t i = 0; i < row.count; ++i) take_row(row.row(i));
          }
        }
      });
    }
  }

 private:
  /// Number of rows that are found at a time for a task that names its samples alone.
  static constexpr size_t kRowsAtOnce = size_t{1} << 13;

  [[nodiscard]] const ArraySource& source_of(const Task& task) const { return *outputs_.source(task.source); }
  [[nodiscard]] int64_t rows_per_sample(size_t output) const {
    return static_cast<int64_t>(outputs_[output].num_offsets());
  }
  /// Calls `use` with the rows that an output gets of a task: with all of them at once, or with some stretches after
  /// others if only their samples are named.
  template <typename Use>
  void for_rows(const Task& task, const TaskRows& of_output, const Use& use) const {
    if (of_output.rows != nullptr) {
      use(of_output.placements());
      return;
    }
    const size_t at_once = std::max<size_t>(1, kRowsAtOnce / outputs_[of_output.output].num_offsets());
    std::vector<RowStretch> rows;
    for (size_t begin = of_output.begin; begin < of_output.end; begin += at_once) {
      const auto samples = std::span(*task.samples).subspan(begin, std::min(at_once, of_output.end - begin));
      find_rows(of_output.output, samples, task.chunk, rows);
      if (!rows.empty()) use(std::span<const RowStretch>(rows));
    }
  }
  /// Sets `rows` to the rows of samples that lie in a chunk.
  void find_rows(size_t output, std::span<const Placement> samples, int64_t chunk, std::vector<RowStretch>& rows) const;
  /// Calls decode(), and adds the array and the chunk to its errors.
  template <typename Decode>
  static auto name_errors(const Task& task, const ChunkReader& reader, const Decode& decode) {
    try {
      return decode();
    } catch (const Error& error) {
      throw reader.at_chunk(error, task.chunk, task.cell);
    }
  }
  /// Decodes a carried chunk for all tasks that share it, and writes the rows of this task. Returns false if this task
  /// does not decode a carried chunk, or if there is no memory for it.
  bool decode_carried(Task& task, const ChunkReader& reader, WorkerScratch& scratch);
  /// Decodes a carried chunk, and writes its carried bytes. Returns the bytes that the rows of this task are to be
  /// copied from: the carried bytes, or all of a chunk that is cropped and was decoded whole. Null: the rows are
  /// written.
  const uint8_t* decode_to(const Task& task, uint8_t* carried, WorkerScratch& scratch);
  /// Sets `outputs`, and `targets` or `patches`, to the rows that a task writes. False: its rows are not listed.
  bool list_targets(const Task& task, WorkerScratch& scratch) const;
  /// True if a task needs few of the Blosc blocks of its chunk.
  bool wants_few_blocks(const Task& task, const ChunkReader& reader, WorkerScratch& scratch) const;
  /// Makes of the stored bytes of a task the chunk that its source decodes.
  void decode_undecoded(Task& task, const ChunkReader& reader, WorkerScratch& scratch);
  /// Decodes a chunk for one task alone.
  void decode(const Task& task, const ChunkReader& reader, WorkerScratch& scratch);
  /// Copies the rows of a task from its decoded chunk, or of patches from a crop; null: the chunk does not exist.
  void scatter(const Task& task, const uint8_t* decoded, WorkerScratch& scratch, bool streaming,
               const ChunkCrop* crop = nullptr);
  /// Adds the slots of rows of an output to `out`.
  template <typename Rows, typename Target>
  void find_targets(size_t output, std::span<const Rows> rows, std::vector<Target>& out) const {
    ring_->find_targets(rows, tensor_of_output_[output], rows_per_sample(output), outputs_[output].slot_bytes(),
                        outputs_[output].slot_offset(), out);
  }
  /// The slots of rows of an output, in memory of the scratch.
  std::span<RowTarget> targets_of(size_t output, std::span<const Placement> rows, WorkerScratch& scratch) const {
    scratch.targets.clear();
    find_targets(output, rows, scratch.targets);
    return scratch.targets;
  }
  std::span<StretchTarget> targets_of(size_t output, std::span<const RowStretch> rows, WorkerScratch& scratch) const {
    scratch.stretches.clear();
    find_targets(output, rows, scratch.stretches);
    return scratch.stretches;
  }
  /// Sets `patches` from `targets`, which name samples.
  void find_patches(WorkerScratch& scratch) const;
  void resume(std::vector<Task> waiting) const {
    if (!waiting.empty()) resume_(std::move(waiting));
  }

  const OutputTable& outputs_;
  const std::vector<size_t> tensor_of_output_;
  ChunkCache* const cache_;
  const bool missing_is_error_;
  Stats& stats_;
  const Resume resume_;
  const OnComplete on_complete_;

  // One epoch.
  const EpochPlan* plan_ = nullptr;
  BatchRing* ring_ = nullptr;
  bool streaming_ = false;
};

}  // namespace zarrfeed
