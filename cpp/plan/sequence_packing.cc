#include "plan/sequence_packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace zarrfeed {

void pack_sequences(std::span<const int64_t> lengths, std::span<const int64_t> pool_begin, int64_t room,
                    std::span<int64_t> sample_of) {
  const auto count = static_cast<int64_t>(lengths.size());
  if (sample_of.size() != lengths.size() || (count > 0 && (pool_begin.empty() || pool_begin.front() != 0)) ||
      !std::ranges::is_sorted(pool_begin) || (!pool_begin.empty() && pool_begin.back() > count)) {
    throw Error(ErrorKind::kConfig, "packing: the pools do not fit the sequences");
  }
  int64_t num_samples = 0;
  std::vector<int64_t> longest_first;
  std::set<std::pair<int64_t, int64_t>> open;  // room that is left, and the sample
  for (size_t pool = 0; pool < pool_begin.size(); ++pool) {
    const int64_t end = pool + 1 < pool_begin.size() ? pool_begin[pool + 1] : count;
    longest_first.resize(static_cast<size_t>(end - pool_begin[pool]));
    std::iota(longest_first.begin(), longest_first.end(), pool_begin[pool]);
    std::ranges::stable_sort(longest_first, std::ranges::greater{},
                             [&](int64_t one) { return lengths[static_cast<size_t>(one)]; });
    open.clear();
    for (const int64_t one : longest_first) {
      const int64_t length = lengths[static_cast<size_t>(one)];
      if (length < 1 || length > room) {
        throw Error(ErrorKind::kConfig,
                    "packing: a sequence of " + std::to_string(length) + " rows, and room for " + std::to_string(room));
      }
      const auto found = open.lower_bound({length, 0});
      const auto [left, sample] = found == open.end() ? std::pair(room, num_samples++) : *found;
      if (found != open.end()) open.erase(found);
      sample_of[static_cast<size_t>(one)] = sample;
      if (left > length) open.emplace(left - length, sample);
    }
  }
}

}  // namespace zarrfeed
