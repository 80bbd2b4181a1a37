#pragma once
// One thread's wait for storage, as others see it.
//
// A read that storage does not answer cannot be interrupted, only left alone. What holds:
//   * A thread is in storage from enter() to leave(), and only there it can be left behind. It is then in no lock of the
//     engine, and reads into memory that it holds itself.
//   * Either abandon() or leave() comes first, and the other one fails. A thread whose leave() fails touches nothing from
//     then on but what it holds; whoever's abandon() failed waits for the thread.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace zarrfeed {

class ReadWatch {
 public:
  using Clock = std::chrono::steady_clock;

  /// What the thread waits for, and since when.
  struct Wait {
    size_t field = 0;
    int64_t chunk = 0;
    size_t cell = 0;
    Clock::time_point since;
  };

  /// By the thread: it goes to storage, for what it may have begun to wait for before.
  void enter(const Wait& wait) {
    // Who sees any of what follows sees that the last wait is over.
    std::atomic_thread_fence(std::memory_order_release);
    field_.store(wait.field, std::memory_order_relaxed);
    chunk_.store(wait.chunk, std::memory_order_relaxed);
    cell_.store(wait.cell, std::memory_order_relaxed);
    since_.store(wait.since.time_since_epoch().count(), std::memory_order_release);
  }
  /// By the thread: it is back. False if it was left behind.
  [[nodiscard]] bool leave() {
    int64_t since = since_.load(std::memory_order_relaxed);
    return since != kAbandoned && since_.compare_exchange_strong(since, kElsewhere, std::memory_order_acq_rel);
  }

  /// By others: leaves the thread behind, if it is in storage.
  [[nodiscard]] bool abandon() {
    int64_t since = since_.load(std::memory_order_acquire);
    return since > kElsewhere && since_.compare_exchange_strong(since, kAbandoned, std::memory_order_acq_rel);
  }
  /// By others: nothing if the thread is not in storage.
  [[nodiscard]] std::optional<Wait> waiting() const {
    const int64_t since = since_.load(std::memory_order_acquire);
    if (since <= kElsewhere) return std::nullopt;
    const Wait wait{field_.load(std::memory_order_relaxed), chunk_.load(std::memory_order_relaxed),
                    cell_.load(std::memory_order_relaxed), Clock::time_point(Clock::duration(since))};
    // Else the thread went on meanwhile, and this is a mixture.
    std::atomic_thread_fence(std::memory_order_acquire);
    return since_.load(std::memory_order_relaxed) == since ? std::optional(wait) : std::nullopt;
  }

 private:
  static constexpr int64_t kElsewhere = 0;
  static constexpr int64_t kAbandoned = -1;

  std::atomic<int64_t> since_{kElsewhere};
  std::atomic<size_t> field_{0};
  std::atomic<int64_t> chunk_{0};
  std::atomic<size_t> cell_{0};
};

/// Thrown in a thread that was left behind, past everything that belongs to the engine.
struct LeftBehind {};

}  // namespace zarrfeed
