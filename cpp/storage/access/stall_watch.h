#pragma once
// One thread's wait for storage, as others see it.
//
// A read that storage does not answer cannot be interrupted, only left alone. Invariants:
//   * A thread is in storage from enter() to leave(), and only there it can be left behind. It is then in no lock of the
//     engine, and reads into memory that it holds itself.
//   * Either abandon() or leave() comes first, and the other one fails. A thread whose leave() fails touches nothing from
//     then on but what it holds; whoever's abandon() failed waits for the thread.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace zarrfeed {

/// Thread-safe. The lock is the thread's own but for moments, so that it costs next to nothing.
class StallWatch {
 public:
  /// The read that the thread waits for, and when the wait began.
  struct Wait {
    size_t source = 0;
    int64_t chunk = 0;
    size_t cell = 0;
    std::chrono::steady_clock::time_point since;
  };

  /// By the thread: it goes to storage, for what it may have begun to wait for before.
  void enter(const Wait& wait) {
    const std::lock_guard lock(mutex_);
    wait_ = wait;
  }
  /// By the thread: it is back. False if it was left behind.
  [[nodiscard]] bool leave() {
    const std::lock_guard lock(mutex_);
    wait_.reset();
    return !abandoned_;
  }

  /// By others: leaves the thread behind, if it is in storage.
  [[nodiscard]] bool abandon() {
    const std::lock_guard lock(mutex_);
    if (wait_.has_value()) abandoned_ = true;
    return abandoned_;
  }
  /// By others: the same, if it waits for what it began to wait for then.
  [[nodiscard]] bool abandon(std::chrono::steady_clock::time_point since) {
    const std::lock_guard lock(mutex_);
    if (wait_.has_value() && wait_->since == since) abandoned_ = true;
    return abandoned_;
  }
  /// By others: nothing if the thread is not in storage.
  [[nodiscard]] std::optional<Wait> waiting() const {
    const std::lock_guard lock(mutex_);
    return wait_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Wait> wait_;
  bool abandoned_ = false;
};

/// Thrown in a thread that was left behind, past everything that belongs to others.
struct LeftBehind {};

/// Calls read(), which goes to storage, on the thread that `watch` is of.
template <typename Read>
auto watch_storage(StallWatch& watch, const StallWatch::Wait& wait, const Read& read) {
  watch.enter(wait);
  try {
    auto result = read();
    if (!watch.leave()) throw LeftBehind{};
    return result;
  } catch (const LeftBehind&) {
    throw;
  } catch (...) {
    if (!watch.leave()) throw LeftBehind{};
    throw;
  }
}

}  // namespace zarrfeed
