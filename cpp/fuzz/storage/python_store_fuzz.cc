// The whole engine on stores that it does not read itself: what answers its requests may say anything.
//
// What must hold: an epoch ends with an error that the answers explain or with every batch, and where bad chunks are passed
// over with every batch; then what is said of these is so, and all of it. Rows of chunks that were answered as stored are
// right; samples of which there was no answer do not arrive; the bytes of an answer are not looked at once the engine called
// them finished; answers to nobody's request change nothing; the next epoch is right.

#include <poll.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <unordered_map>

#include "base/bytes.h"
#include "fuzz/support/engine_input.h"
#include "spec/shard_spec.h"
#include "storage/shard_index.h"
#include "tests/support/check.h"
#include "tests/support/feeding.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::fuzzing::python_store_fuzz {
namespace {

using testing::OpenPart;

enum class Answer {
  kAsStored,
  kByte,
  kTruncated,
  kArbitrary,
  kMissing,
  kRefused,
  kCorrupt,
  kOther,
  kTwice,
  kNobody,
  kLate
};
constexpr int64_t kNumAnswers = 11;

/// Answers an engine's requests on the thread that reads.
class Feeder {
 public:
  Feeder(const Store& store, Engine& engine, const EngineOptions& options)
      : store_(&store),
        engine_(&engine),
        missing_is_error_(options.missing_is_error),
        caches_indices_(options.caller_runs) {}

  /// Takes what was asked for and finished, and answers some requests as `draw` says; when that is empty, all of them, as
  /// stored. Returns true if any request is left to answer.
  bool serve(Draw& draw) {
    std::vector<FetchRequest> requests;
    std::vector<uint64_t> finished;
    engine_->stores().bridge()->take(requests, finished);
    for (const uint64_t request_id : finished) provided_.erase(request_id);
    std::vector<OpenPart> parts = testing::parts_of(std::move(requests));
    std::move(parts.begin(), parts.end(), std::back_inserter(open_));
    for (int64_t count = draw.empty() ? std::ssize(open_) : draw.pick(1, 4); count > 0 && !open_.empty(); --count) {
      answer(draw);
    }
    return !open_.empty();
  }

  /// The epoch is over: what was handed over is its owner's again, and what was not answered will be, too late.
  void end() {
    provided_.clear();
    damage_ = {};
    given_.clear();
    std::move(open_.begin(), open_.end(), std::back_inserter(late_));
    open_.clear();
  }

  void answer_late() {
    for (const OpenPart& request : late_) {
      const FetchAnswer answer{request.request_id(), Bytes{}};
      engine_->stores().bridge()->answer({&answer, 1});
      engine_->stores().bridge()->refuse(request.request_id(), Error::io("late", 5));
    }
    late_.clear();
  }

  [[nodiscard]] const Damage& damage() const { return damage_; }

 private:
  [[nodiscard]] const ByteVector* object(const OpenPart& request) const {
    const auto file = store_->originals.find(store_->data.arrays[request.field]->chunk_path(request.key));
    return file == store_->originals.end() ? nullptr : &file->second;
  }

  [[nodiscard]] std::optional<ByteVector> stored(const OpenPart& request) const {
    const ByteVector* const bytes = object(request);
    if (bytes == nullptr) return std::nullopt;
    const Bytes part = testing::bytes_in(request.part.range, *bytes);
    return ByteVector(part.begin(), part.end());
  }

  /// Where a range begins that the index of its shard has, as stored: which inner chunk it is.
  [[nodiscard]] std::optional<size_t> inner_chunk(const OpenPart& request) const {
    const ByteRange& range = request.part.range;
    const ByteVector* const bytes = object(request);
    if (range.kind != ByteRange::Kind::kAt || bytes == nullptr) return std::nullopt;
    const ShardSpec shard = store_->data.arrays[request.field]->field().array.shard;
    const size_t index_bytes = stored_index_bytes(shard);
    const Bytes index = Bytes(*bytes).subspan(shard.index_at_start ? 0 : bytes->size() - index_bytes, index_bytes);
    const ShardIndex parsed(shard, index, bytes->size());
    for (size_t i = 0; i < parsed.num_chunks(); ++i) {
      const auto found = parsed.find(i);
      if (found && found->offset == range.offset && found->size == range.size) return i;
    }
    return std::nullopt;
  }

  /// Whether an answer may be taken for good, and is not what is stored.
  static bool is_other(Answer kind) {
    return kind == Answer::kByte || kind == Answer::kTruncated || kind == Answer::kArbitrary ||
           kind == Answer::kMissing || kind == Answer::kOther;
  }

  /// What follows from an answer. A chunk may be asked for again, so it is lost as long as no answer had bytes.
  void note(const OpenPart& request, Answer kind) {
    const bool as_stored =
        kind == Answer::kAsStored || kind == Answer::kTwice || kind == Answer::kNobody || kind == Answer::kLate;
    const bool is_refused =
        kind == Answer::kRefused || kind == Answer::kCorrupt || (kind == Answer::kMissing && missing_is_error_);
    const std::pair<size_t, std::string> whole(request.field, request.key);
    if (request.is_index) {  // anything may be read by it, or nothing
      if (as_stored) return;
      damage_.changed.insert(whole);
      damage_.other.insert(whole);
      std::erase_if(damage_.lost, [&](const auto& chunk) {
        return chunk.first == whole.first && chunk.second.starts_with(whole.second + " ");
      });
      return;
    }
    const std::pair<size_t, std::string> chunk(request.field, label(request.key, inner_chunk(request)));
    if (request.part.range.kind == ByteRange::Kind::kAt && chunk == whole) return;  // where no inner chunk lies
    if (!as_stored) damage_.changed.insert(chunk);
    if (!as_stored && !is_refused) damage_.other.insert(chunk);
    if (chunk != whole && damage_.other.contains(whole)) return;  // found by an index that was not as stored
    if (!is_refused) given_.insert(chunk);
    if (given_.contains(chunk)) {
      damage_.lost.erase(chunk);
    } else {
      damage_.lost.insert(chunk);
    }
  }

  void answer(Draw& draw) {
    const auto which = static_cast<size_t>(draw.pick(0, std::ssize(open_) - 1));
    std::swap(open_[which], open_.back());
    const OpenPart request = std::move(open_.back());
    open_.pop_back();
    auto kind = static_cast<Answer>(draw.pick(0, kNumAnswers - 1));
    // What a cached index says holds for later epochs, too, which are to be right.
    if (request.is_index && caches_indices_ && is_other(kind)) kind = Answer::kAsStored;
    std::optional<ByteVector> bytes = stored(request);
    note(request, kind);
    switch (kind) {
      case Answer::kByte:
        if (bytes && !bytes->empty()) (*bytes)[static_cast<size_t>(draw.pick(0, 65'535)) % bytes->size()] = draw.byte();
        break;
      case Answer::kTruncated:
        if (bytes) bytes->resize(static_cast<size_t>(draw.pick(0, 65'535)) % (bytes->size() + 1));
        break;
      case Answer::kArbitrary: {
        const Bytes given = draw.take(static_cast<size_t>(draw.pick(0, 255)));
        bytes.emplace(given.begin(), given.end());
        break;
      }
      case Answer::kMissing:
        bytes.reset();
        break;
      case Answer::kRefused:
        engine_->stores().bridge()->refuse(request.request_id(), Error::io("no luck", 5));
        return;
      case Answer::kCorrupt:
        engine_->stores().bridge()->refuse(request.request_id(), Error(ErrorKind::kCorrupt, "no sense"));
        return;
      case Answer::kOther:
        if (!open_.empty()) bytes = stored(open_.front());
        break;
      case Answer::kNobody: {
        const FetchAnswer nobody{request.request_id() + static_cast<uint64_t>(draw.pick(1000, 2000)), Bytes{}};
        engine_->stores().bridge()->answer({&nobody, 1});
        break;
      }
      default:
        break;
    }
    FetchAnswer answers[2];
    answers[0].request_id = answers[1].request_id = request.request_id();
    if (bytes) {
      // Of exactly its size, so that a sanitizer sees who reads on, or too late.
      auto room = std::make_unique_for_overwrite<uint8_t[]>(bytes->size());
      if (!bytes->empty()) std::memcpy(room.get(), bytes->data(), bytes->size());
      answers[0].bytes = answers[1].bytes = Bytes(room.get(), bytes->size());
      provided_.emplace(request.request_id(), std::move(room));
    }
    engine_->stores().bridge()->answer({answers, size_t{kind == Answer::kTwice ? 2U : 1U}});
    if (kind == Answer::kLate)
      engine_->stores().bridge()->refuse(request.request_id(), Error::io("answered before", 5));
  }

  const Store* store_;
  Engine* engine_;
  bool missing_is_error_;
  bool caches_indices_;
  Damage damage_;
  Chunks given_;
  std::vector<OpenPart> open_;
  std::vector<OpenPart> late_;
  std::unordered_map<uint64_t, std::unique_ptr<uint8_t[]>> provided_;
};

/// Reads as much as is wanted; `works` says that the consumer decodes, and has to be in next() for that.
void read(Reader& reader, Feeder& feeder, Draw& draw, bool works, int64_t stop_after) {
  reader.start(stop_after);
  feeder.answer_late();
  bool timed_out = false;
  bool more = true;
  int waits = 0;
  while (more) {
    const bool asked = feeder.serve(draw);
    if (!asked && !works) {
      pollfd entry{reader.engine().stores().bridge()->descriptor(), POLLIN, 0};
      poll(&entry, 1, 1);
    }
    more = reader.take(std::chrono::milliseconds(asked || !works ? 0 : 1), feeder.damage(), timed_out);
    waits = timed_out && !asked ? waits + 1 : 0;
    CHECK(waits < 100 * kMaxWaits);  // of 1 ms
  }
}

void run_input(Bytes input) {
  Draw draw(input);
  const Store& one = draw_store(draw);
  const Reading reading = draw_reading(draw, one);
  Reader reader(one, testing::fed_fields(one.data), reading);
  Feeder feeder(one, reader.engine(), reading.options);
  try {
    read(reader, feeder, draw, reading.options.caller_runs, reading.stop_after);
  } catch (const std::exception& error) {
    const bool is_explained = !reading.options.skip_bad && !feeder.damage().changed.empty();
    if (!is_refusal(error) || !is_explained) throw;
  }
  reader.engine().stop();
  feeder.end();
  if (reading.options.cache_bytes > 0) return;
  Draw none({});
  read(reader, feeder, none, reading.options.caller_runs, std::numeric_limits<int64_t>::max());
  reader.engine().stop();
}

std::vector<ByteVector> make_seeds() {
  return make_reading_seeds([](Pen& pen, int64_t number) {
    for (int64_t i = 0; i < number % 30; ++i) {
      pen.byte(static_cast<uint8_t>(i * 3 + number));
      pen.pick(i % 5 == 4 ? number % kNumAnswers : 0, 0, kNumAnswers - 1);
    }
  });
}

std::vector<Finding> findings() {
  return {};
}

const Target target("python_store", run_input, make_seeds, findings, kSlowChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::python_store_fuzz
