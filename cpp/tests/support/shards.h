#pragma once
// Shards for tests, put together byte by byte from the specification of `sharding_indexed`.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "spec/shard_spec.h"

namespace zarrfeed::testing {

constexpr uint64_t kNoChunk = ~uint64_t{0};

/// One entry of an index: offset and size.
using ShardEntry = std::pair<uint64_t, uint64_t>;

/// An index as stored.
std::vector<uint8_t> make_index(const ShardSpec& spec, const std::vector<ShardEntry>& entries);

/// A whole shard of these inner chunks, in C order; nothing: the shard lacks that one. They are stored from the last to
/// the first with `gap` bytes before each, as the order in a shard is the writer's choice.
std::vector<uint8_t> make_shard(const ShardSpec& spec, const std::vector<std::optional<std::vector<uint8_t>>>& chunks,
                                size_t gap = 0);

}  // namespace zarrfeed::testing
