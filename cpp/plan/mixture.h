#pragma once
// Mixtures: at which step the samples of each source are taken.
//
// src/zarrfeed/plan/mixture/mixture.py has the definition, and settles trees, ratios and phases; this is the inverse of its
// `at`, number by number. Steps are dealt to columns. In a column, each node of a tree splits its rows between two
// children: of its first n rows, the left one has floor(n ratio + phase), the right one the others. So row x of a node
// that is number n of a child is found by one division, and a step by one for each node above the source.
//
// Pure: a function of its arguments.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zarrfeed {

/// Weights from a row on.
struct MixtureStage {
  int64_t first_row = 0;
  std::vector<uint64_t> ratio;  ///< of each node: the left child's share, in units of 2^-62
  std::vector<uint64_t> phase;  ///< of each node, and in it of each column, in the same units
  std::vector<int64_t> base;    ///< of each source, and in it of each column: samples before `first_row`
};

class Mixture {
 public:
  /// A node above a source, and on which side of it the source is: 0 is left.
  struct Turn {
    int64_t node = 0;
    int64_t side = 0;
  };

  /// `paths`: of each source, the nodes above it up to the root. `unit`: so many steps in a row are of one source.
  /// Throws Error(kConfig) if the numbers do not fit together.
  Mixture(int64_t columns, int64_t unit, std::vector<std::vector<Turn>> paths, std::vector<MixtureStage> stages);

  /// The step that takes a position of the endless sequence of a source; -1 if no step below 2^62 does.
  [[nodiscard]] int64_t step_of(size_t source, int64_t position) const;

  [[nodiscard]] size_t num_sources() const { return paths_.size(); }
  [[nodiscard]] int64_t columns() const { return columns_; }
  [[nodiscard]] int64_t unit() const { return unit_; }

 private:
  const int64_t columns_;
  const int64_t unit_;
  const std::vector<std::vector<Turn>> paths_;
  const std::vector<MixtureStage> stages_;
};

}  // namespace zarrfeed
