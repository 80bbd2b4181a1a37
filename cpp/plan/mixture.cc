#include "plan/mixture.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace zarrfeed {
namespace {

constexpr uint64_t kOne = uint64_t{1} << 62;
constexpr int64_t kEnd = int64_t{1} << 62;  ///< steps are below this

/// The row of a node that is number n of one of its children; -1 if that is no row below `end`.
int64_t nth_row(int64_t n, uint64_t ratio, uint64_t phase, int64_t side, int64_t end) {
  using Wide = unsigned __int128;
  const uint64_t share = side == 0 ? ratio : kOne - ratio;
  if (share == 0) return -1;
  const Wide ones = static_cast<Wide>(n) << 62;
  // Left: the least x with (x + 1) ratio + phase >= n + 1. Right: with (x + 1) (1 - ratio) - phase > n.
  const Wide x = side == 0 ? (ones + kOne - phase - 1) / share : (ones + phase) / share;
  return x >= static_cast<Wide>(end) ? -1 : static_cast<int64_t>(x);
}

[[noreturn]] void refuse_mixture(const char* what) {
  throw Error(ErrorKind::kConfig, std::string("mixture: ") + what);
}

}  // namespace

Mixture::Mixture(int64_t columns, int64_t unit, std::vector<std::vector<Turn>> paths, std::vector<MixtureStage> stages)
    : columns_(columns), unit_(unit), paths_(std::move(paths)), stages_(std::move(stages)) {
  if (columns_ < 1 || unit_ < 1 || paths_.empty() || stages_.empty())
    refuse_mixture("no columns, unit, sources or weights");
  if (columns_ > 1 && unit_ > 1) refuse_mixture("columns of units: steps would not ascend with positions");
  const size_t nodes = paths_.size() - 1;
  const auto width = static_cast<size_t>(columns_);
  for (const MixtureStage& stage : stages_) {
    if (stage.ratio.size() != nodes || stage.phase.size() != nodes * width ||
        stage.base.size() != paths_.size() * width) {
      refuse_mixture("arrays of the wrong size");
    }
    for (const uint64_t ratio : stage.ratio) {
      if (ratio > kOne) refuse_mixture("a share above 1");
    }
    for (const uint64_t phase : stage.phase) {
      if (phase >= kOne) refuse_mixture("a phase of 1 or more");
    }
    if (stage.first_row < 0 || stage.first_row > kEnd / columns_)
      refuse_mixture("weights from a row beyond the last one");
  }
  for (const std::vector<Turn>& path : paths_) {
    for (const Turn& turn : path) {
      if (turn.node < 0 || static_cast<size_t>(turn.node) >= nodes) refuse_mixture("a node that is not there");
    }
  }
}

int64_t Mixture::step_of(size_t source, int64_t position) const {
  const int64_t of_unit = position / unit_;
  const int64_t before = of_unit / columns_;
  const auto column = static_cast<size_t>(of_unit % columns_);
  const auto width = static_cast<size_t>(columns_);
  // If the source has nothing in several stages, the last one begins with the same count, and has the sample.
  size_t number = stages_.size() - 1;
  while (number > 0 && stages_[number].base[source * width + column] > before) --number;
  const MixtureStage& stage = stages_[number];
  int64_t row = before - stage.base[source * width + column];
  const int64_t end = kEnd / columns_ - stage.first_row;
  if (row >= end) return -1;
  for (const Turn& turn : paths_[source]) {
    const auto node = static_cast<size_t>(turn.node);
    row = nth_row(row, stage.ratio[node], stage.phase[node * width + column], turn.side, end);
    if (row < 0) return -1;
  }
  const int64_t step = (row + stage.first_row) * columns_ + static_cast<int64_t>(column);
  return step >= kEnd / unit_ ? -1 : step * unit_ + position % unit_;
}

}  // namespace zarrfeed
