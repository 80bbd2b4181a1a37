#pragma once
// Someone to answer the requests of an engine, as Python would: from the files of test arrays, on a thread of its own.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "spec/field_spec.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing {

/// One part of what an engine asks for.
struct OpenPart {
  size_t field = 0;
  std::string key;
  bool is_index = false;
  FetchPart part;

  [[nodiscard]] uint64_t request_id() const { return part.request_id; }
};

/// The parts of requests, in their order.
std::vector<OpenPart> parts_of(std::vector<FetchRequest> requests);
/// What a range has of the bytes of an object: fewer bytes than asked for where that ends.
Bytes bytes_in(const ByteRange& range, Bytes object);

/// The fields of `data`, with its arrays read through the Python store.
std::vector<FieldSpec> fed_fields(const Dataset& data);

/// Answers in random order, until it is destroyed. What it lends lies in memory that is gone once the engine says that it
/// is finished, so that a sanitizer sees whoever reads it later.
class TestFeeder {
 public:
  /// With `refusing`, every request_id is refused, from the first one on.
  TestFeeder(Engine& engine, const Dataset& data, uint64_t seed = 1, bool refusing = false);
  ~TestFeeder();
  TestFeeder(const TestFeeder&) = delete;
  TestFeeder& operator=(const TestFeeder&) = delete;

  /// Most requests that were unanswered or not finished at once; and how many there were.
  [[nodiscard]] size_t most() const { return most_; }
  [[nodiscard]] size_t total() const { return total_; }
  /// Request ids that wait are refused from now on.
  void refuse_all() { refusing_ = true; }
  /// Nothing is answered from now on.
  void stall() { stalling_ = true; }

 private:
  void serve();
  void answer_some();

  Engine* engine_;
  const Dataset* data_;
  std::mt19937_64 random_;
  std::vector<OpenPart> open_;
  std::map<uint64_t, std::unique_ptr<std::vector<uint8_t>>> provided_;
  std::atomic<size_t> most_{0};
  std::atomic<size_t> total_{0};
  std::atomic<bool> refusing_;
  std::atomic<bool> stalling_{false};
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace zarrfeed::testing
