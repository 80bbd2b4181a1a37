#include "tests/support/feeding.h"

#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/bytes.h"

namespace zarrfeed::testing {

std::vector<FieldSpec> fed_fields(const Dataset& data) {
  std::vector<FieldSpec> fields = data.fields();
  for (size_t f = 0; f < data.arrays.size(); ++f) {
    fields[f].array.in_python = true;
    fields[f].array.root.clear();
    fields[f].array.metadata_key.clear();
  }
  return fields;
}

TestFeeder::TestFeeder(Engine& engine, const Dataset& data, uint64_t seed, bool refusing)
    : engine_(&engine), data_(&data), random_(seed), refusing_(refusing), thread_([this] { serve(); }) {}

TestFeeder::~TestFeeder() {
  done_ = true;
  thread_.join();
}

void TestFeeder::serve() {
  std::vector<FetchRequest> requests;
  std::vector<uint64_t> finished;
  while (!done_) {
    pollfd entry{engine_->stores().bridge()->descriptor(), POLLIN, 0};
    poll(&entry, 1, open_.empty() ? 5 : 0);
    engine_->stores().bridge()->take(requests, finished);
    for (const uint64_t request_id : finished) provided_.erase(request_id);
    total_ += requests.size();
    std::move(requests.begin(), requests.end(), std::back_inserter(open_));
    most_ = std::max(most_.load(), open_.size() + provided_.size());
    if (!open_.empty() && !stalling_) answer_some();
  }
}

void TestFeeder::answer_some() {
  if (refusing_) {
    engine_->stores().bridge()->refuse(open_.back().request_id, Error::io("no luck", 5));
    open_.pop_back();
    return;
  }
  std::shuffle(open_.begin(), open_.end(), random_);
  std::vector<FetchAnswer> answers;
  for (size_t n = 1 + random_() % open_.size(); n > 0; --n) {
    const FetchRequest request = std::move(open_.back());
    open_.pop_back();
    FetchAnswer& answer = answers.emplace_back();
    answer.request_id = request.request_id;
    const std::filesystem::path path = data_->arrays[request.field]->chunk_path(request.key);
    if (!std::filesystem::exists(path)) continue;
    const auto& bytes =
        provided_.emplace(request.request_id, std::make_unique<std::vector<uint8_t>>(read_file(path))).first->second;
    answer.bytes = Bytes(*bytes);
  }
  engine_->stores().bridge()->answer(answers);
}

}  // namespace zarrfeed::testing
