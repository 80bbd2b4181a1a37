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

std::vector<OpenPart> parts_of(std::vector<FetchRequest> requests) {
  std::vector<OpenPart> parts;
  for (const FetchRequest& request : requests) {
    for (const FetchPart& part : request.parts) parts.push_back({request.source, request.key, request.is_index, part});
  }
  return parts;
}

Bytes bytes_in(const ByteRange& range, Bytes object) {
  switch (range.kind) {
    case ByteRange::Kind::kAll:
      return object;
    case ByteRange::Kind::kLast:
      return object.last(std::min<size_t>(range.size, object.size()));
    default:
      const Bytes rest = object.subspan(std::min<size_t>(range.offset, object.size()));
      return rest.first(std::min<size_t>(range.size, rest.size()));
  }
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
    std::vector<OpenPart> parts = parts_of(std::move(requests));
    total_ += parts.size();
    std::move(parts.begin(), parts.end(), std::back_inserter(open_));
    most_ = std::max(most_.load(), open_.size() + provided_.size());
    if (!open_.empty() && !stalling_) answer_some();
  }
}

void TestFeeder::answer_some() {
  if (refusing_) {
    engine_->stores().bridge()->refuse(open_.back().request_id(), Error::io("no luck", 5));
    open_.pop_back();
    return;
  }
  std::shuffle(open_.begin(), open_.end(), random_);
  std::vector<FetchAnswer> answers;
  for (size_t n = 1 + random_() % open_.size(); n > 0; --n) {
    const OpenPart wanted = std::move(open_.back());
    open_.pop_back();
    FetchAnswer& answer = answers.emplace_back();
    answer.request_id = wanted.request_id();
    const std::filesystem::path path = data_->arrays[wanted.field]->chunk_path(wanted.key);
    if (!std::filesystem::exists(path)) continue;
    const std::vector<uint8_t> object = read_file(path);
    const Bytes part = bytes_in(wanted.part.range, object);
    const auto& bytes =
        provided_.emplace(answer.request_id, std::make_unique<std::vector<uint8_t>>(part.begin(), part.end()))
            .first->second;
    answer.bytes = Bytes(*bytes);
  }
  engine_->stores().bridge()->answer(answers);
}

}  // namespace zarrfeed::testing
