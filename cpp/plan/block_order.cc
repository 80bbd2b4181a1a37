#include "plan/block_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/division.h"
#include "plan/refuse.h"
#include "plan/row_order.h"

namespace zarrfeed {
namespace {

// Different purposes must never share a key.
constexpr uint64_t kRotationOfStratum = 0x726f74617465;
constexpr uint64_t kOrderOfSuperblocks = 0x7375706572;
constexpr uint64_t kOrderOfMembers = 0x6d656d62657273;

/// Blocks that are unfolded at once where that costs nothing.
constexpr int64_t kBlocksAtOnce = 64;
/// The position of every so many blocks is stored, for a listed order.
constexpr int64_t kSpacing = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 32;

class NaturalOrder final : public BlockOrder {
 public:
  NaturalOrder(std::shared_ptr<const BlockTable> table, int64_t first, bool short_last)
      : BlockOrder(std::move(table)), num_blocks_(table_->num_blocks()), first_(first) {
    if (first < 0 || first >= num_blocks_) refuse_plan("the epoch order begins at block " + std::to_string(first));
    // The held indices are those of [first, middle), then [0, first), then those of [middle, num_blocks).
    middle_ = short_last ? num_blocks_ - 1 : num_blocks_;
    if (first_ >= middle_) {  // the last block alone comes first, or last: either way the others keep their order
      first_ = 0;
    }
    rows_first_ = table_->rows_before(first_);
    rows_middle_ = table_->rows_before(middle_);
  }

  [[nodiscard]] Seat find(int64_t position) const override {
    const int64_t row = position < rows_middle_ - rows_first_ ? position + rows_first_
                        : position < rows_middle_             ? position - (rows_middle_ - rows_first_)
                                                              : position;
    return at(ordinal_of(table_->index_of(row)));
  }

  [[nodiscard]] Seat at(int64_t ordinal) const override {
    const int64_t index = index_at(ordinal);
    const int64_t row = table_->rows_before(index);
    if (index >= middle_) return {ordinal, row};
    return {ordinal, index >= first_ ? row - rows_first_ : row + rows_middle_ - rows_first_};
  }

  void unfold(int64_t ordinal, std::vector<uint32_t>& indices) const override {
    indices.clear();
    const int64_t end = std::min(num_blocks_, ordinal + kBlocksAtOnce);
    for (; ordinal < end; ++ordinal) indices.push_back(static_cast<uint32_t>(index_at(ordinal)));
  }

  [[nodiscard]] int64_t ordinal_of(int64_t index) const override {
    if (index >= middle_) return index;
    return index >= first_ ? index - first_ : index + middle_ - first_;
  }

 private:
  [[nodiscard]] int64_t index_at(int64_t ordinal) const {
    if (ordinal >= middle_) return ordinal;
    return ordinal < middle_ - first_ ? ordinal + first_ : ordinal - (middle_ - first_);
  }

  const int64_t num_blocks_;
  int64_t first_, middle_;
  int64_t rows_first_ = 0, rows_middle_ = 0;  ///< rows before these two
};

class ListedOrder final : public BlockOrder {
 public:
  ListedOrder(std::shared_ptr<const BlockTable> table, std::span<const int64_t> indices)
      : BlockOrder(std::move(table)), indices_(indices.begin(), indices.end()) {
    if (std::ssize(indices) != table_->num_blocks()) refuse_plan("the epoch order has another number of blocks");
    int64_t position = 0;
    std::vector<bool> seen(indices.size());
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] < 0 || indices[i] >= table_->num_blocks() || seen[indices_[i]]) {
        refuse_plan("the epoch order has block " + std::to_string(indices[i]) + " twice, or there is none");
      }
      seen[indices_[i]] = true;
      if (i % kSpacing == 0) begins_.push_back(position);
      position += table_->at(indices[i]).rows;
    }
  }

  [[nodiscard]] Seat find(int64_t position) const override {
    const auto found = std::upper_bound(begins_.begin(), begins_.end(), position) - 1;
    Seat seat{(found - begins_.begin()) * kSpacing, *found};
    for (;;) {
      const int64_t rows = rows_of(seat.ordinal);
      if (position < seat.begin + rows) return seat;
      seat = {seat.ordinal + 1, seat.begin + rows};
    }
  }

  [[nodiscard]] Seat at(int64_t ordinal) const override {
    Seat seat{ordinal / kSpacing * kSpacing, begins_[static_cast<size_t>(ordinal / kSpacing)]};
    while (seat.ordinal < ordinal) seat.begin += rows_of(seat.ordinal++);
    return seat;
  }

  void unfold(int64_t ordinal, std::vector<uint32_t>& indices) const override {
    const auto begin = indices_.begin() + ordinal;
    indices.assign(begin, begin + std::min<int64_t>(kBlocksAtOnce, std::ssize(indices_) - ordinal));
  }

  [[nodiscard]] int64_t ordinal_of(int64_t index) const override {
    return std::find(indices_.begin(), indices_.end(), static_cast<uint32_t>(index)) - indices_.begin();
  }

 private:
  [[nodiscard]] int64_t rows_of(int64_t ordinal) const {
    return table_->at(indices_[static_cast<size_t>(ordinal)]).rows;
  }

  const std::vector<uint32_t> indices_;
  std::vector<int64_t> begins_;  ///< of each kSpacing-th block
};

class CombOrder final : public BlockOrder {
 public:
  CombOrder(std::shared_ptr<const BlockTable> table, uint64_t seed, uint64_t epoch, int64_t strata)
      : BlockOrder(std::move(table)),
        seed_(seed),
        epoch_(epoch),
        num_blocks_(table_->num_blocks()),
        superblocks_(ceil_div(num_blocks_, strata)) {
    for (int64_t i = 0; i < strata; ++i) {
      const uint64_t key[] = {seed, epoch, kRotationOfStratum, static_cast<uint64_t>(i)};
      rotation_.push_back(static_cast<int64_t>(KeyedRandom(key).below(static_cast<uint64_t>(superblocks_))));
    }
    order_.resize(static_cast<size_t>(superblocks_));
    const uint64_t key[] = {seed, epoch, kOrderOfSuperblocks};
    random_permutation(KeyedRandom(key), order_);
    find_begins();
  }

  [[nodiscard]] Seat find(int64_t position) const override {
    const auto found = std::upper_bound(begin_.begin(), begin_.end(), position) - 1;
    Members of;
    unfold_superblock(static_cast<size_t>(found - begin_.begin()), of);
    Seat seat{of.ordinal, *found};
    for (const uint32_t index : of.indices) {
      const int64_t rows = table_->at(index).rows;
      if (position < seat.begin + rows) break;
      seat = {seat.ordinal + 1, seat.begin + rows};
    }
    return seat;
  }

  [[nodiscard]] Seat at(int64_t ordinal) const override {
    Members of;
    const size_t number = superblock_at(ordinal);
    unfold_superblock(number, of);
    Seat seat{ordinal, begin_[number]};
    for (int64_t i = of.ordinal; i < ordinal; ++i) {
      seat.begin += table_->at(of.indices[static_cast<size_t>(i - of.ordinal)]).rows;
    }
    return seat;
  }

  void unfold(int64_t ordinal, std::vector<uint32_t>& indices) const override {
    Members of;
    of.indices = std::move(indices);
    unfold_superblock(superblock_at(ordinal), of);
    indices = std::move(of.indices);
    indices.erase(indices.begin(), indices.begin() + (ordinal - of.ordinal));
  }

  [[nodiscard]] int64_t ordinal_of(int64_t index) const override {
    const int64_t superblock = superblock_of(index);
    const auto number = static_cast<size_t>(std::find(order_.begin(), order_.end(), superblock) - order_.begin());
    Members of;
    unfold_superblock(number, of);
    const auto found = std::find(of.indices.begin(), of.indices.end(), static_cast<uint32_t>(index));
    return of.ordinal + (found - of.indices.begin());
  }

 private:
  /// The blocks of a superblock in their order, and the ordinal of the first one.
  struct Members {
    std::vector<uint32_t> indices;
    int64_t ordinal = 0;
  };

  /// The superblock that has a held index.
  [[nodiscard]] int64_t superblock_of(int64_t index) const {
    const int64_t stratum = index / superblocks_;
    const int64_t back = index - stratum * superblocks_ - rotation_[static_cast<size_t>(stratum)];
    return back < 0 ? back + superblocks_ : back;
  }

  /// The number in the order of superblocks of the one that has the block with an ordinal.
  [[nodiscard]] size_t superblock_at(int64_t ordinal) const {
    return static_cast<size_t>(std::upper_bound(ordinal_.begin(), ordinal_.end(), ordinal) - ordinal_.begin()) - 1;
  }

  void unfold_superblock(size_t number, Members& out) const {
    const int64_t superblock = order_[number];
    thread_local std::vector<int64_t> strata;
    strata.resize(rotation_.size());
    const uint64_t key[] = {seed_, epoch_, kOrderOfMembers, static_cast<uint64_t>(superblock)};
    random_permutation(KeyedRandom(key), strata);
    out.ordinal = ordinal_[number];
    out.indices.clear();
    out.indices.reserve(strata.size());
    for (const int64_t stratum : strata) {
      const int64_t turned = superblock + rotation_[static_cast<size_t>(stratum)];
      const int64_t index = stratum * superblocks_ + (turned >= superblocks_ ? turned - superblocks_ : turned);
      if (index < num_blocks_) out.indices.push_back(static_cast<uint32_t>(index));
    }
  }

  /// Sets where each superblock begins: the sums of rows and of blocks of all before it.
  void find_begins() {
    // If blocks have stretches, these are differences at first: the blocks of a stretch are in superblocks that
    // follow each other, so a stretch is two or four sums, however long it is.
    std::vector<int64_t> rows(static_cast<size_t>(superblocks_) + 1);
    std::vector<int64_t> count(rows.size());
    const bool has_stretches = table_->has_stretches();
    std::vector<int64_t> listed(has_stretches ? 0 : static_cast<size_t>(superblocks_));
    for (size_t i = 0; i < rotation_.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(i) * superblocks_;
      const int64_t end = std::min(num_blocks_, begin + superblocks_);
      if (begin >= end) break;
      add_stretch(superblock_of(begin), {end - begin, 1}, count);
      if (has_stretches) {
        for (int64_t index = begin; index < end;) {
          const Stretch stretch = table_->stretch(index, end);
          add_stretch(superblock_of(index), stretch, rows);
          index += stretch.count;
        }
      } else {
        const std::span<int64_t> of_stratum(listed.data(), static_cast<size_t>(end - begin));
        table_->list_rows(begin, of_stratum);
        auto superblock = static_cast<size_t>(superblock_of(begin));
        for (const int64_t one : of_stratum) {
          rows[superblock++] += one;
          if (superblock == static_cast<size_t>(superblocks_)) superblock = 0;
        }
      }
    }
    if (has_stretches) std::partial_sum(rows.begin(), rows.end(), rows.begin());
    std::partial_sum(count.begin(), count.end(), count.begin());
    begin_.reserve(order_.size());
    ordinal_.reserve(order_.size());
    Seat next;
    for (const int64_t superblock : order_) {
      begin_.push_back(next.begin);
      ordinal_.push_back(next.ordinal);
      next.begin += rows[static_cast<size_t>(superblock)];
      next.ordinal += count[static_cast<size_t>(superblock)];
    }
  }

  /// Adds the rows of blocks in superblocks that follow each other, the first one behind the last one, as differences.
  void add_stretch(int64_t superblock, const Stretch& stretch, std::vector<int64_t>& differences) const {
    const int64_t end = superblock + stretch.count;
    differences[static_cast<size_t>(superblock)] += stretch.rows;
    differences[static_cast<size_t>(std::min(superblocks_, end))] -= stretch.rows;
    if (end > superblocks_) {
      differences[0] += stretch.rows;
      differences[static_cast<size_t>(end - superblocks_)] -= stretch.rows;
    }
  }

  const uint64_t seed_, epoch_;
  const int64_t num_blocks_;
  const int64_t superblocks_;      ///< m
  std::vector<int64_t> rotation_;  ///< h_i
  // Each superblock, in their order: its number j, the position and the ordinal at which it begins. A
  // superblock without blocks begins where the next one does, so a search for the last one never finds it.
  std::vector<int64_t> order_, begin_, ordinal_;
};

}  // namespace

BlockOrder::BlockOrder(std::shared_ptr<const BlockTable> table) : table_(std::move(table)) {
  if (table_->num_blocks() > kMostBlocks) refuse_plan("more than 2^32 blocks");
}

std::shared_ptr<const BlockOrder> BlockOrder::natural(std::shared_ptr<const BlockTable> table, int64_t first,
                                                      bool short_last) {
  return std::make_shared<NaturalOrder>(std::move(table), first, short_last);
}

std::shared_ptr<const BlockOrder> BlockOrder::listed(std::shared_ptr<const BlockTable> table,
                                                     std::span<const int64_t> indices) {
  return std::make_shared<ListedOrder>(std::move(table), indices);
}

std::shared_ptr<const BlockOrder> BlockOrder::combs(std::shared_ptr<const BlockTable> table, uint64_t seed,
                                                    uint64_t epoch, int64_t strata) {
  if (strata < 1) refuse_plan("combs of " + std::to_string(strata) + " strata");
  return std::make_shared<CombOrder>(std::move(table), seed, epoch, strata);
}

}  // namespace zarrfeed
