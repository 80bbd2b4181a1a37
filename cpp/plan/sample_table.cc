#include "plan/sample_table.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "base/division.h"
#include "base/error.h"

namespace zarrfeed {
namespace {

class ListedSamples final : public SampleTable {
 public:
  ListedSamples(std::span<const int64_t> samples, std::shared_ptr<const void> owner, bool ascends)
      : samples_(samples), owner_(std::move(owner)) {
    length_ = std::ssize(samples);
    ascends_ = ascends;
  }
  [[nodiscard]] int64_t at(int64_t number) const override { return samples_[static_cast<size_t>(number)]; }
  [[nodiscard]] int64_t rank(int64_t sample) const override {
    return std::lower_bound(samples_.begin(), samples_.end(), sample) - samples_.begin();
  }
  void list(int64_t first, std::span<int64_t> out) const override {
    std::ranges::copy(samples_.subspan(static_cast<size_t>(first), out.size()), out.begin());
  }

 private:
  const std::span<const int64_t> samples_;
  const std::shared_ptr<const void> owner_;
};

class SampleRuns final : public SampleTable {
 public:
  SampleRuns(std::span<const int64_t> begin, std::span<const int64_t> count, int64_t step)
      : begin_(begin.begin(), begin.end()), step_(step) {
    bool fits = begin.size() == count.size() && step >= 1;
    before_.reserve(count.size() + 1);
    before_.push_back(0);
    for (size_t i = 0; fits && i < count.size(); ++i) {
      const int64_t room = i + 1 < begin.size() ? begin[i + 1] - begin[i] : begin[i] < 0 ? -1 : INT64_MAX - begin[i];
      fits = begin[i] >= 0 && count[i] >= 1 && room >= 1 && count[i] - 1 <= (room - 1) / step;
      before_.push_back(before_.back() + count[i]);
    }
    if (!fits) throw Error(ErrorKind::kConfig, "plan: the runs of samples do not fit together");
    length_ = before_.back();
  }
  [[nodiscard]] int64_t at(int64_t number) const override {
    const size_t run = run_of(number);
    return begin_[run] + (number - before_[run]) * step_;
  }
  [[nodiscard]] int64_t rank(int64_t sample) const override {
    const auto behind = std::lower_bound(begin_.begin(), begin_.end(), sample);
    if (behind == begin_.begin()) return 0;
    const auto run = static_cast<size_t>(behind - begin_.begin()) - 1;
    return std::min(before_[run + 1], before_[run] + ceil_div(sample - begin_[run], step_));
  }
  void list(int64_t first, std::span<int64_t> out) const override {
    if (out.empty()) return;
    size_t run = run_of(first);
    int64_t number = first;
    for (int64_t& sample : out) {
      if (number == before_[run + 1]) ++run;
      sample = begin_[run] + (number++ - before_[run]) * step_;
    }
  }

 private:
  [[nodiscard]] size_t run_of(int64_t number) const {
    return static_cast<size_t>(std::upper_bound(before_.begin(), before_.end(), number) - before_.begin()) - 1;
  }

  const std::vector<int64_t> begin_;
  std::vector<int64_t> before_;  ///< samples before each run, and of all runs
  const int64_t step_;
};

class PagedSamples final : public SampleTable {
 public:
  PagedSamples(std::span<const uint16_t> offset, std::span<const int64_t> before, std::vector<int64_t> base,
               std::shared_ptr<const void> owner)
      : offset_(offset), owner_(std::move(owner)), before_(before.begin(), before.end()), base_(std::move(base)) {
    const bool fits = std::ssize(before_) == std::ssize(base_) + 1 && before_.front() == 0 &&
                      before_.back() == std::ssize(offset) && std::ranges::is_sorted(before_) &&
                      std::ranges::is_sorted(base_) && (base_.empty() || base_.front() >= 0);
    if (!fits) throw Error(ErrorKind::kConfig, "plan: the pages of samples do not fit together");
    length_ = before_.back();
  }
  [[nodiscard]] int64_t at(int64_t number) const override {
    return base_[page_of(number)] + offset_[static_cast<size_t>(number)];
  }
  [[nodiscard]] int64_t rank(int64_t sample) const override {
    const auto end = std::upper_bound(base_.begin(), base_.end(), sample);
    if (end == base_.begin()) return 0;
    auto page = static_cast<size_t>(std::lower_bound(base_.begin(), end, *(end - 1)) - base_.begin());
    int64_t found = before_[page];
    for (; page < static_cast<size_t>(end - base_.begin()); ++page) {  // several have one base if samples repeat
      const auto begin = offset_.begin() + before_[page];
      found += std::lower_bound(begin, offset_.begin() + before_[page + 1], sample - base_[page]) - begin;
    }
    return found;
  }
  void list(int64_t first, std::span<int64_t> out) const override {
    if (out.empty()) return;
    size_t page = page_of(first);
    int64_t number = first;
    for (int64_t& sample : out) {
      while (number == before_[page + 1]) ++page;
      sample = base_[page] + offset_[static_cast<size_t>(number++)];
    }
  }

 private:
  [[nodiscard]] size_t page_of(int64_t number) const {
    return static_cast<size_t>(std::upper_bound(before_.begin(), before_.end(), number) - before_.begin()) - 1;
  }

  const std::span<const uint16_t> offset_;
  const std::shared_ptr<const void> owner_;
  const std::vector<int64_t> before_;  ///< samples before each page, and of all pages
  const std::vector<int64_t> base_;    ///< what the offsets of each page are counted from
};

/// Counts samples up to every page of flags, so that a number is looked up in one page.
class FlaggedSamples final : public SampleTable {
 public:
  FlaggedSamples(std::span<const uint8_t> flags, std::shared_ptr<const void> owner)
      : flags_(flags), owner_(std::move(owner)) {
    before_.push_back(0);
    for (size_t page = 0; page < flags.size(); page += kPage) {
      before_.push_back(before_.back() + count(page, std::min(page + kPage, flags.size())));
    }
    length_ = before_.back();
  }
  [[nodiscard]] int64_t at(int64_t number) const override {
    int64_t sample = 0;
    list(number, {&sample, 1});
    return sample;
  }
  [[nodiscard]] int64_t rank(int64_t sample) const override {
    if (sample <= 0) return 0;
    const auto byte = static_cast<size_t>(sample / 8);
    if (byte >= flags_.size()) return length_;
    const auto below = static_cast<unsigned>((1U << (sample % 8)) - 1);
    return before_[byte / kPage] + count(byte / kPage * kPage, byte) + std::popcount(flags_[byte] & below);
  }
  void list(int64_t first, std::span<int64_t> out) const override {
    if (out.empty()) return;
    const auto page =
        static_cast<size_t>(std::upper_bound(before_.begin(), before_.end(), first) - before_.begin()) - 1;
    int64_t skipped = first - before_[page];
    size_t byte = page * kPage;
    for (; byte + sizeof(uint64_t) <= flags_.size(); byte += sizeof(uint64_t)) {
      const int64_t of_word = count(byte, byte + sizeof(uint64_t));
      if (skipped < of_word) break;
      skipped -= of_word;
    }
    for (; skipped >= std::popcount(flags_[byte]); ++byte) skipped -= std::popcount(flags_[byte]);
    for (size_t i = 0; i < out.size(); ++byte) {
      for (unsigned left = flags_[byte]; left != 0 && i < out.size(); left &= left - 1) {
        if (skipped-- > 0) continue;
        out[i++] = static_cast<int64_t>(byte) * 8 + std::countr_zero(left);
      }
    }
  }

 private:
  static constexpr size_t kPage = 4096;

  [[nodiscard]] int64_t count(size_t begin, size_t end) const {
    int64_t found = 0;
    for (; begin + sizeof(uint64_t) <= end; begin += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, flags_.data() + begin, sizeof(word));
      found += std::popcount(word);
    }
    for (; begin < end; ++begin) found += std::popcount(flags_[begin]);
    return found;
  }

  const std::span<const uint8_t> flags_;
  const std::shared_ptr<const void> owner_;
  std::vector<int64_t> before_;  ///< samples before each page, and of all pages
};

class GriddedSamples final : public SampleTable {
 public:
  GriddedSamples(SampleGrid grid, std::shared_ptr<const SampleTable> rows)
      : grid_(std::move(grid)), rows_(std::move(rows)) {
    length_ = rows_->length();
  }
  [[nodiscard]] int64_t at(int64_t number) const override { return grid_.sample_of(rows_->at(number)); }
  [[nodiscard]] int64_t rank(int64_t sample) const override { return rows_->rank(grid_.row_of(sample)); }
  void list(int64_t first, std::span<int64_t> out) const override {
    rows_->list(first, out);
    for (int64_t& one : out) one = grid_.sample_of(one);
  }

 private:
  const SampleGrid grid_;
  const std::shared_ptr<const SampleTable> rows_;
};

}  // namespace

SampleRange SampleTable::range(int64_t first, int64_t count) const {
  if (ascends_) return {at(first), at(first + count - 1)};
  std::vector<int64_t> samples(static_cast<size_t>(count));
  list(first, samples);
  const auto [low, high] = std::ranges::minmax(samples);
  return {low, high};
}

std::shared_ptr<const SampleTable> SampleTable::of_grid(SampleGrid grid, std::shared_ptr<const SampleTable> rows) {
  return std::make_shared<GriddedSamples>(std::move(grid), std::move(rows));
}

std::shared_ptr<const SampleTable> SampleTable::of_list(std::span<const int64_t> samples,
                                                        std::shared_ptr<const void> owner, bool ascends) {
  return std::make_shared<ListedSamples>(samples, std::move(owner), ascends);
}

std::shared_ptr<const SampleTable> SampleTable::of_runs(std::span<const int64_t> begin, std::span<const int64_t> count,
                                                        int64_t step) {
  return std::make_shared<SampleRuns>(begin, count, step);
}

std::shared_ptr<const SampleTable> SampleTable::of_pages(std::span<const uint16_t> offset,
                                                         std::span<const int64_t> before, unsigned bits,
                                                         std::shared_ptr<const void> owner) {
  std::vector<int64_t> base(bits > 16 || before.empty() ? 0 : before.size() - 1);
  for (size_t page = 0; page < base.size(); ++page) base[page] = static_cast<int64_t>(page) << bits;
  return std::make_shared<PagedSamples>(offset, before, std::move(base), std::move(owner));
}

std::shared_ptr<const SampleTable> SampleTable::of_repeats(std::span<const uint16_t> offset,
                                                           std::span<const int64_t> before,
                                                           std::span<const int64_t> base,
                                                           std::shared_ptr<const void> owner) {
  return std::make_shared<PagedSamples>(offset, before, std::vector<int64_t>(base.begin(), base.end()),
                                        std::move(owner));
}

std::shared_ptr<const SampleTable> SampleTable::of_flags(std::span<const uint8_t> flags,
                                                         std::shared_ptr<const void> owner) {
  return std::make_shared<FlaggedSamples>(flags, std::move(owner));
}

}  // namespace zarrfeed
