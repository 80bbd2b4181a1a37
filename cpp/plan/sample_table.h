#pragma once
// The sample table: which samples are read, in ascending order, without an entry for each where a rule says them. A
// sample that is read has a number, counted among the samples that are read. In an epoch of weighted samples, a sample
// has a number each time that it comes. Samples of a sequence that the user gives are listed in its order, and may
// repeat.
//
// Pure. All functions are const, and may be called from several threads.

#include <cstdint>
#include <memory>
#include <span>

#include "spec/sample_grid.h"

namespace zarrfeed {

/// The least and the largest of some samples.
struct SampleRange {
  int64_t first;
  int64_t last;
};

class SampleTable {
 public:
  virtual ~SampleTable() = default;
  SampleTable(const SampleTable&) = delete;
  SampleTable& operator=(const SampleTable&) = delete;

  /// The table of samples that are listed, ascending; or a sequence of samples in any order, which has no ranks.
  /// Borrows the list, which `owner` keeps alive.
  static std::shared_ptr<const SampleTable> of_list(std::span<const int64_t> samples, std::shared_ptr<const void> owner,
                                                    bool ascends = true);
  /// The table of runs: run i has `count[i]` samples, `step` apart, from `begin[i]` on, and each begins behind the one
  /// before it. Copies the arrays.
  static std::shared_ptr<const SampleTable> of_runs(std::span<const int64_t> begin, std::span<const int64_t> count,
                                                    int64_t step);
  /// The table of samples in pages of 2^bits: sample p * 2^bits + offset[i] for each i of [before[p], before[p + 1]).
  /// Borrows the offsets.
  static std::shared_ptr<const SampleTable> of_pages(std::span<const uint16_t> offset, std::span<const int64_t> before,
                                                     unsigned bits, std::shared_ptr<const void> owner);
  /// The table of pages that begin at any samples: base[p] + offset[i]. Samples of a page ascend, and may repeat. Pages
  /// with the same base follow each other; all others have ranges of their own, which ascend. Borrows the offsets.
  static std::shared_ptr<const SampleTable> of_repeats(std::span<const uint16_t> offset,
                                                       std::span<const int64_t> before, std::span<const int64_t> base,
                                                       std::shared_ptr<const void> owner);
  /// The table of the samples whose flag is set: bit `s % 8` of byte `s / 8`. Borrows the flags, which `owner` keeps
  /// alive. of_runs(), of_pages() and of_repeats() throw Error(kConfig) if the numbers do not fit together.
  static std::shared_ptr<const SampleTable> of_flags(std::span<const uint8_t> flags, std::shared_ptr<const void> owner);

  /// The table of the samples of a grid that have some rows, in the order of the rows: box by box, so that samples ascend
  /// inside of each box alone. `rank` is for samples of the table. Shares `rows`.
  static std::shared_ptr<const SampleTable> of_grid(SampleGrid grid, std::shared_ptr<const SampleTable> rows);

  /// The number of samples.
  [[nodiscard]] int64_t length() const { return length_; }
  /// The sample with a number of [0, length()).
  [[nodiscard]] virtual int64_t at(int64_t number) const = 0;
  /// The number of samples that are less than `sample`.
  [[nodiscard]] virtual int64_t rank(int64_t sample) const = 0;
  /// Sets `out` to the samples from number `first` on, which all exist.
  virtual void list(int64_t first, std::span<int64_t> out) const = 0;
  /// The range of `count` samples from number `first` on, which all exist; count >= 1.
  [[nodiscard]] SampleRange range(int64_t first, int64_t count) const;

 protected:
  SampleTable() = default;
  int64_t length_ = 0;
  bool ascends_ = true;
};

}  // namespace zarrfeed
