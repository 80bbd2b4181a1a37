#pragma once
// Reads and decodes the chunks of one array one by one, and tells what is wrong with each: the engine of `verify`.
//
// Chunks are numbered shard by shard: number = (shard in C order) * (inner chunks of a shard) + (position in it), so
// that a run of numbers reads few indices. Positions of a shard that lie beyond the end of the array have numbers, too,
// and are passed over. Where there are no shards, a number is the chunk's position in the grid, in C order.
//
// Chunks are read through a ChunkReader, as the engine reads them: with retries after transient errors, and
// no longer than `timeout`. A run of chunks is checked by a thread of the checker's own, which is left behind where
// storage does not answer; the chunk that it waits for is then a finding, and another thread goes on with the next one.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "spec/array_spec.h"
#include "storage/access/watched_threads.h"
#include "storage/chunk_reader.h"

namespace zarrfeed {

/// A chunk that is missing or bad, or all chunks of a shard from `number` on, if the shard as a whole is.
struct ChunkFinding {
  int64_t number = 0;
  int64_t chunks = 1;        ///< so many are concerned
  std::string key;           ///< of the stored object, below the array's directory
  std::string inner;         ///< grid index of an inner chunk in its shard, such as "3/0"
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
  /// Throws Error(kIo) if the array is gone. An array in a store that Python reads is not opened: it can only be
  /// decoded.
  explicit ChunkChecker(ArraySpec array, ReadPolicy policy = {});
  ~ChunkChecker();
  ChunkChecker(const ChunkChecker&) = delete;
  ChunkChecker& operator=(const ChunkChecker&) = delete;

  /// One more than the largest number of a chunk; numbers begin with 0.
  [[nodiscard]] int64_t num_numbers() const;
  /// Reads and decodes chunks [begin, end). Whatever is wrong is a finding; none takes longer than the policy's
  /// timeout.
  ChunkCheck check(int64_t begin, int64_t end);
  /// Throws Error(kCorrupt) unless these bytes decode to a read chunk.
  void check_bytes(Bytes stored);

 private:
  class Chunks;  ///< the array: what threads hold that may be left behind
  struct Job;
  struct Worker;

  std::shared_ptr<Worker> take_worker();
  void start_worker(const std::shared_ptr<Worker>& worker);
  void give_back(std::shared_ptr<Worker> worker);

  const std::shared_ptr<Chunks> chunks_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Worker>> idle_;
  WatchedThreads threads_;
};

}  // namespace zarrfeed
