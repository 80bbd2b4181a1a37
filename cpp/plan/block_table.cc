#include "plan/block_table.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/division.h"
#include "plan/refuse.h"

namespace zarrfeed {
namespace {

/// The rows before every so many blocks are stored, for listed blocks.
constexpr int64_t kCountedEvery = 256;

[[noreturn]] void refuse_blocks(const char* what) {
  refuse_plan(std::string("the blocks ") + what);
}

class RunTable final : public BlockTable {
 public:
  RunTable(std::vector<BlockRun> runs, int64_t num_blocks) : runs_(std::move(runs)) {
    num_blocks_ = num_blocks;
    if (runs_.empty() || runs_.front().held_index != 0) refuse_blocks("do not begin with the first one");
    for (size_t i = 0; i < runs_.size(); ++i) {
      const BlockRun& run = runs_[i];
      const int64_t count = end_of(i) - run.held_index;
      if (count < 1 || run.rows < 1 || run.first < 0 || run.block < 0 || run.stride < 0)
        refuse_blocks("are not in runs");
      if (count > (std::numeric_limits<int64_t>::max() - length_) / run.rows) refuse_blocks("have too many rows");
      before_.push_back(length_);
      length_ += count * run.rows;
    }
  }

  [[nodiscard]] BlockRows at(int64_t index) const override {
    const BlockRun& run = runs_[run_of(index)];
    const int64_t i = index - run.held_index;
    return {run.block + i, run.first + i * run.stride, run.rows};
  }

  [[nodiscard]] int64_t rows_before(int64_t index) const override {
    if (index == num_blocks_) return length_;
    const size_t i = run_of(index);
    return before_[i] + (index - runs_[i].held_index) * runs_[i].rows;
  }

  [[nodiscard]] int64_t index_of(int64_t row) const override {
    const auto found = std::upper_bound(before_.begin(), before_.end(), row) - 1;
    const BlockRun& run = runs_[static_cast<size_t>(found - before_.begin())];
    return run.held_index + (row - *found) / run.rows;
  }

  [[nodiscard]] Stretch stretch(int64_t index, int64_t end) const override {
    const size_t i = run_of(index);
    return {std::min(end, end_of(i)) - index, runs_[i].rows};
  }

  [[nodiscard]] bool has_stretches() const override { return true; }

  void list_rows(int64_t index, std::span<int64_t> rows) const override {
    for (int64_t& one : rows) one = at(index++).rows;
  }

 private:
  [[nodiscard]] int64_t end_of(size_t i) const { return i + 1 < runs_.size() ? runs_[i + 1].held_index : num_blocks_; }

  [[nodiscard]] size_t run_of(int64_t index) const {
    if (index < end_of(0)) return 0;
    const auto found = std::upper_bound(runs_.begin(), runs_.end(), index,
                                        [](int64_t wanted, const BlockRun& run) { return wanted < run.held_index; });
    return static_cast<size_t>(found - runs_.begin()) - 1;
  }

  const std::vector<BlockRun> runs_;
  std::vector<int64_t> before_;  ///< rows before each run
};

/// Evenly spaced samples of an array with blocks of one length. Either each block has some, or each sample has a block
/// of its own.
class StepTable final : public BlockTable {
 public:
  StepTable(int64_t start, int64_t step, int64_t count, int64_t block_rows)
      : start_(start), step_(step), block_rows_(block_rows), low_(start / std::max<int64_t>(1, block_rows)) {
    if (start < 0 || step < 1 || count < 1 || block_rows < 1) refuse_blocks("of evenly spaced samples are none");
    if (count - 1 > (std::numeric_limits<int64_t>::max() - start - block_rows) / step)
      refuse_blocks("have too many rows");
    length_ = count;
    num_blocks_ = sparse() ? count : (start + step * (count - 1)) / block_rows - low_ + 1;
  }

  [[nodiscard]] BlockRows at(int64_t index) const override {
    const int64_t before = rows_before(index);
    const int64_t first = start_ + step_ * before;
    return {first / block_rows_, first, rows_before(index + 1) - before};
  }

  [[nodiscard]] int64_t rows_before(int64_t index) const override {
    if (sparse()) return index;
    const int64_t begin = (low_ + index) * block_rows_;
    return begin <= start_ ? 0 : std::min(length_, ceil_div(begin - start_, step_));
  }

  [[nodiscard]] int64_t index_of(int64_t row) const override {
    return sparse() ? row : (start_ + step_ * row) / block_rows_ - low_;
  }

  [[nodiscard]] Stretch stretch(int64_t index, int64_t end) const override {
    if (sparse()) return {end - index, 1};
    const int64_t rows = rows_before(index + 1) - rows_before(index);
    if (!is_even() || index == 0 || index >= num_blocks_ - 1) return {1, rows};
    return {std::min(end, num_blocks_ - 1) - index, rows};
  }

  [[nodiscard]] bool has_stretches() const override { return sparse() || is_even(); }

  void list_rows(int64_t index, std::span<int64_t> rows) const override {
    if (rows.empty()) return;
    const int64_t end = index + std::ssize(rows);
    rows.front() = at(index).rows;
    if (index == 0 || end == num_blocks_) rows.back() = at(end - 1).rows;
    if (sparse()) {
      std::ranges::fill(rows, 1);
      return;
    }
    // Blocks between the first and the last one: their sums of rows grow linearly, so divide once and go on.
    const int64_t quotient = block_rows_ / step_;
    const int64_t remainder = block_rows_ % step_;
    const int64_t from = std::max<int64_t>(index, 1);
    int64_t behind = ((low_ + from) * block_rows_ - start_ + step_ - 1) % step_;  // from the last sample on
    for (int64_t p = from; p < std::min(end, num_blocks_ - 1); ++p) {
      behind += remainder;
      const bool has_one_more = behind >= step_;
      if (has_one_more) behind -= step_;
      rows[static_cast<size_t>(p - index)] = quotient + (has_one_more ? 1 : 0);
    }
  }

 private:
  /// True if each sample has a block of its own.
  [[nodiscard]] bool sparse() const { return step_ >= block_rows_; }
  /// True if all blocks but the first and the last one have as many samples.
  [[nodiscard]] bool is_even() const { return block_rows_ % step_ == 0; }

  const int64_t start_, step_, block_rows_;
  const int64_t low_;  ///< the first block that has a sample
};

/// Numbers from 0 on, each in as few bytes as the largest one needs.
class Narrow {
 public:
  explicit Narrow(std::span<const int64_t> values) {
    const int64_t most = values.empty() ? 0 : *std::ranges::max_element(values);
    if (!values.empty() && *std::ranges::min_element(values) < 0) refuse_blocks("have a number below 0");
    if (most <= std::numeric_limits<uint8_t>::max()) {
      bytes_.assign(values.begin(), values.end());
    } else if (most <= std::numeric_limits<uint32_t>::max()) {
      words_.assign(values.begin(), values.end());
    } else {
      wide_.assign(values.begin(), values.end());
    }
  }

  [[nodiscard]] int64_t operator[](int64_t i) const {
    const auto at = static_cast<size_t>(i);
    if (!bytes_.empty()) return bytes_[at];
    return words_.empty() ? wide_[at] : static_cast<int64_t>(words_[at]);
  }

 private:
  std::vector<uint8_t> bytes_;
  std::vector<uint32_t> words_;
  std::vector<int64_t> wide_;
};

class ListTable final : public BlockTable {
 public:
  ListTable(std::span<const int64_t> block, std::span<const int64_t> first, std::span<const int64_t> rows)
      : block_(block), first_(first), rows_(rows) {
    if (block.empty() || block.size() != first.size() || block.size() != rows.size())
      refuse_blocks("are lists of no length");
    num_blocks_ = std::ssize(block);
    for (int64_t index = 0; index < num_blocks_; ++index) {
      if (index % kCountedEvery == 0) before_.push_back(length_);
      if (rows_[index] < 1) refuse_blocks("have one without rows");
      length_ += rows_[index];
    }
  }

  [[nodiscard]] BlockRows at(int64_t index) const override { return {block_[index], first_[index], rows_[index]}; }

  [[nodiscard]] int64_t rows_before(int64_t index) const override {
    if (index == num_blocks_) return length_;
    int64_t rows = before_[static_cast<size_t>(index / kCountedEvery)];
    for (int64_t p = index / kCountedEvery * kCountedEvery; p < index; ++p) rows += rows_[p];
    return rows;
  }

  [[nodiscard]] int64_t index_of(int64_t row) const override {
    const auto found = std::upper_bound(before_.begin(), before_.end(), row) - 1;
    int64_t index = (found - before_.begin()) * kCountedEvery;
    for (int64_t left = row - *found; left >= rows_[index]; ++index) left -= rows_[index];
    return index;
  }

  [[nodiscard]] Stretch stretch(int64_t index, int64_t /*end*/) const override { return {1, rows_[index]}; }

  [[nodiscard]] bool has_stretches() const override { return false; }

  void list_rows(int64_t index, std::span<int64_t> rows) const override {
    for (int64_t& one : rows) one = rows_[index++];
  }

 private:
  const Narrow block_, first_, rows_;
  std::vector<int64_t> before_;  ///< rows before each kCountedEvery-th block
};

}  // namespace

std::shared_ptr<const BlockTable> BlockTable::of_runs(std::vector<BlockRun> runs, int64_t num_blocks) {
  return std::make_shared<RunTable>(std::move(runs), num_blocks);
}

std::shared_ptr<const BlockTable> BlockTable::of_steps(int64_t start, int64_t step, int64_t count, int64_t block_rows) {
  return std::make_shared<StepTable>(start, step, count, block_rows);
}

std::shared_ptr<const BlockTable> BlockTable::of_list(std::span<const int64_t> block, std::span<const int64_t> first,
                                                      std::span<const int64_t> rows) {
  return std::make_shared<ListTable>(block, first, rows);
}

}  // namespace zarrfeed
