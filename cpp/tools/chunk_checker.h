#pragma once
// Reads and decodes the chunks of one array one by one, and tells what is wrong with each: the engine of `verify`.
//
// Chunks are numbered shard by shard: number = (shard in C order) * (inner chunks of a shard) + (place in it), so that a
// run of numbers reads few indices. Places of a shard that lie beyond the end of the array have numbers, too, and are
// passed over. Where there are no shards, a number is the chunk's place in the grid, in C order.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "codecs/codec_pipeline.h"
#include "spec/array_spec.h"
#include "storage/file_store.h"
#include "storage/shard_reader.h"

namespace zarrfeed {

/// A chunk that is missing or bad, or all chunks of a shard from `number` on, if the shard as a whole is.
struct ChunkFinding {
  int64_t number = 0;
  int64_t chunks = 1;        ///< so many are concerned
  std::string key;           ///< of the stored object, below the array's directory
  std::string inner;         ///< place of an inner chunk in its shard, such as "3/0"
  std::optional<Error> bad;  ///< what is wrong; none: the chunk is missing
};

struct ChunkCheck {
  int64_t good = 0;
  uint64_t stored_bytes = 0;
  uint64_t decoded_bytes = 0;
  std::vector<ChunkFinding> findings;  ///< ascending
};

/// Thread-safe. Memory follows the number of threads inside of it, never the number of chunks.
class ChunkChecker {
 public:
  /// Throws Error(kIo) if the array is gone. An array that is fed is not opened: it can only be decoded.
  explicit ChunkChecker(ArraySpec array);

  /// Numbers of chunks: [0, num_numbers()).
  [[nodiscard]] int64_t num_numbers() const { return num_objects_ * per_object_; }
  /// Reads and decodes chunks [begin, end), waiting as long as it takes. Whatever is wrong is a finding.
  ChunkCheck check(int64_t begin, int64_t end);
  /// Throws Error(kCorrupt) unless these bytes decode to a read chunk.
  void check_bytes(Bytes stored);

 private:
  struct Scratch {
    DecodeScratch codecs;
    Buffer stored;
    Buffer decoded;
  };
  class Lease;  ///< scratch that a thread has for a while

  void check_object(int64_t begin, int64_t end, Scratch& scratch, ChunkCheck& out);
  void check_chunk(int64_t number, const std::string& key, Scratch& scratch, ChunkCheck& out);
  [[nodiscard]] std::vector<int64_t> grid_of(int64_t number) const;
  [[nodiscard]] bool is_inside(int64_t number) const;

  const ArraySpec array_;
  std::vector<int64_t> grid_;          ///< read chunks of the array along each axis
  std::vector<int64_t> objects_;       ///< shards of the array along each axis, or chunks where there are none
  std::vector<int64_t> chunks_along_;  ///< read chunks of a stored object along each axis
  int64_t num_objects_ = 1;
  int64_t per_object_ = 1;
  CodecPipeline pipeline_;
  std::unique_ptr<FileStore> source_;
  std::unique_ptr<ShardReader> shards_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_;  ///< scratch that no thread uses
};

}  // namespace zarrfeed
