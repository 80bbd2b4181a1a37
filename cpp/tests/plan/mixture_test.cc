// Mixtures: steps that are found by division, against rows that are dealt one by one.

#include "plan/mixture.h"

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::mixture_test {
namespace {

constexpr uint64_t kOne = uint64_t{1} << 62;

/// A tree of sources in a chain: node v has source v on its left, and node v + 1, or the last source, on its right.
struct Chain {
  int64_t columns = 1;
  size_t sources = 1;
  std::vector<MixtureStage> stages;

  [[nodiscard]] std::vector<std::vector<Mixture::Turn>> paths() const {
    std::vector<std::vector<Mixture::Turn>> made(sources);
    for (size_t source = 0; source < sources; ++source) {
      const bool is_last = source + 1 == sources;
      if (!is_last) made[source].push_back({static_cast<int64_t>(source), 0});
      for (size_t above = source; above-- > 0;) made[source].push_back({static_cast<int64_t>(above), 1});
    }
    return made;
  }
};

Chain random_chain(std::mt19937_64& random) {
  Chain chain;
  chain.columns = pick(random, 1, 6);
  chain.sources = static_cast<size_t>(pick(random, 1, 5));
  const size_t nodes = chain.sources - 1;
  for (int64_t stage = 0, first_row = 0; stage < pick(random, 1, 3); ++stage) {
    MixtureStage& made = chain.stages.emplace_back();
    made.first_row = first_row;
    first_row += pick(random, 1, 40);
    for (size_t node = 0; node < nodes; ++node) {
      made.ratio.push_back(random() % 8 == 0 ? (random() % 2 == 0 ? 0 : kOne) : random() % kOne);
      for (int64_t column = 0; column < chain.columns; ++column) made.phase.push_back(random() % kOne);
    }
    made.base.resize(chain.sources * static_cast<size_t>(chain.columns));
  }
  return chain;
}

/// floor(n ratio + phase).
int64_t share(int64_t n, uint64_t ratio, uint64_t phase) {
  return static_cast<int64_t>((static_cast<unsigned __int128>(n) * ratio + phase) >> 62);
}

/// Deals the first rows of each column one by one, sets the bases of later stages, and returns (source, position) ->
/// row * columns + column.
std::map<std::pair<size_t, int64_t>, int64_t> deal(Chain& chain, int64_t rows) {
  std::map<std::pair<size_t, int64_t>, int64_t> steps;
  const auto width = static_cast<size_t>(chain.columns);
  for (int64_t column = 0; column < chain.columns; ++column) {
    const auto c = static_cast<size_t>(column);
    std::vector<int64_t> taken(chain.sources);
    size_t number = 0;
    std::vector<int64_t> before(chain.sources);  // rows of each node in the stage
    for (int64_t row = 0; row < rows; ++row) {
      while (number + 1 < chain.stages.size() && chain.stages[number + 1].first_row == row) {
        ++number;
        before.assign(chain.sources, 0);
        for (size_t s = 0; s < chain.sources; ++s) chain.stages[number].base[s * width + c] = taken[s];
      }
      const MixtureStage& stage = chain.stages[number];
      size_t source = 0;
      for (; source + 1 < chain.sources; ++source) {
        const int64_t n = before[source]++;
        const uint64_t phase = stage.phase[source * width + c];
        if (share(n + 1, stage.ratio[source], phase) > share(n, stage.ratio[source], phase)) break;
      }
      steps[{source, taken[source]++ * chain.columns + column}] = row * chain.columns + column;
    }
  }
  return steps;
}

}  // namespace

TEST(steps_are_those_of_rows_that_are_dealt_one_by_one) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    Chain chain = random_chain(random);
    const auto steps = deal(chain, 150);
    const Mixture mixture(chain.columns, 1, chain.paths(), chain.stages);
    for (const auto& [taken, step] : steps) CHECK_EQ(mixture.step_of(taken.first, taken.second), step);
  }
}

TEST(steps_in_units_follow_each_other) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 50; ++round) {
    Chain chain = random_chain(random);
    chain.columns = 1;
    for (MixtureStage& stage : chain.stages) {
      stage.phase.resize(chain.sources - 1);
      stage.base.resize(chain.sources);
    }
    const auto steps = deal(chain, 100);
    const int64_t unit = pick(random, 2, 9);
    const Mixture mixture(1, unit, chain.paths(), chain.stages);
    for (const auto& [taken, step] : steps) {
      for (int64_t i = 0; i < unit; ++i) {
        CHECK_EQ(mixture.step_of(taken.first, taken.second * unit + i), step * unit + i);
      }
    }
  }
}

TEST(a_position_that_is_never_taken_has_no_step) {
  MixtureStage stage;
  stage.ratio = {kOne};
  stage.phase = {0};
  stage.base = {0, 0};
  const std::vector<std::vector<Mixture::Turn>> paths = {{{0, 0}}, {{0, 1}}};
  const Mixture mixture(1, 1, paths, {stage});
  CHECK_EQ(mixture.step_of(0, 12345), 12345);
  CHECK_EQ(mixture.step_of(1, 0), -1);
  stage.ratio = {1};  // once in 2^62 rows
  const Mixture rare(1, 1, paths, {stage});
  CHECK_EQ(rare.step_of(0, 0), (int64_t{1} << 62) - 1);
  CHECK_EQ(rare.step_of(0, 1), -1);
  CHECK_EQ(rare.step_of(1, 7), 7);
}

TEST(numbers_that_do_not_fit_together_are_refused) {
  MixtureStage good;
  good.ratio = {kOne / 2};
  good.phase = {0, 0};
  good.base = {0, 0, 0, 0};
  const std::vector<std::vector<Mixture::Turn>> paths = {{{0, 0}}, {{0, 1}}};
  const auto refused = [&](int64_t columns, int64_t unit, const auto& of_paths, const MixtureStage& stage) {
    CHECK_THROWS(kConfig, "mixture: ", Mixture(columns, unit, of_paths, {stage}));
  };
  CHECK_EQ(Mixture(2, 1, paths, {good}).num_sources(), size_t{2});
  refused(0, 1, paths, good);
  refused(2, 0, paths, good);
  refused(2, 2, paths, good);
  refused(3, 1, paths, good);
  refused(2, 1, std::vector<std::vector<Mixture::Turn>>{{{1, 0}}, {{0, 1}}}, good);
  MixtureStage bad = good;
  bad.ratio = {kOne + 1};
  refused(2, 1, paths, bad);
  bad = good;
  bad.phase = {0, kOne};
  refused(2, 1, paths, bad);
  bad = good;
  bad.first_row = -1;
  refused(2, 1, paths, bad);
}

}  // namespace zarrfeed::testing::mixture_test
