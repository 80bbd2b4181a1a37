#pragma once
// The counters of the engine. Times are summed over threads.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace zarrfeed {

struct Stats {
  std::atomic<uint64_t> chunks_read{0};
  std::atomic<uint64_t> chunks_missing{0};
  std::atomic<uint64_t> chunks_waited{0};    ///< not in the page cache: read by a fetch thread
  std::atomic<uint64_t> retries{0};          ///< retries after a transient error
  std::atomic<uint64_t> bytes_read{0};       ///< stored bytes that were read
  std::atomic<uint64_t> stored_bytes{0};     ///< stored size of the chunks that were read, whole or in part
  std::atomic<uint64_t> chunk_bytes{0};      ///< decoded size of the chunks that were read, whole or in part
  std::atomic<uint64_t> bytes_decoded{0};    ///< bytes of the chunks, or of the Blosc blocks, that were decoded
  std::atomic<uint64_t> bytes_scattered{0};  ///< written to batches
  std::atomic<uint64_t> batches{0};
  std::atomic<uint64_t> samples{0};
  std::atomic<uint64_t> fetch_ns{0};
  std::atomic<uint64_t> decode_ns{0};
  std::atomic<uint64_t> scatter_ns{0};
  std::atomic<uint64_t> order_ns{0};          ///< the order of rows, and task making
  std::atomic<uint64_t> idle_storage_ns{0};   ///< decode threads with nothing to do: chunks were being fetched
  std::atomic<uint64_t> idle_memory_ns{0};    ///< ... the budget had no room for the batches of another group
  std::atomic<uint64_t> idle_other_ns{0};     ///< ... enough was open, or nothing was left to begin
  std::atomic<uint64_t> consumer_wait_ns{0};  ///< the consumer was in next(), decoding or not
  std::atomic<uint64_t> consumer_busy_ns{0};  ///< the consumer had taken a batch, and did not ask for the next one yet
};

/// Adds the time between construction and destruction (or lap) to a counter.
class StageTimer {
 public:
  explicit StageTimer(std::atomic<uint64_t>& total) : total_(&total), start_(Clock::now()) {}
  ~StageTimer() { lap(*total_); }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

  /// Ends the stage under way and begins `next`.
  void lap(std::atomic<uint64_t>& next) {
    const auto now = Clock::now();
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now - start_).count();
    total_->fetch_add(static_cast<uint64_t>(ns), std::memory_order_relaxed);
    total_ = &next;
    start_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<uint64_t>* total_;
  Clock::time_point start_;
};

}  // namespace zarrfeed
