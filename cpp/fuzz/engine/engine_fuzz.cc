// The whole engine on local stores whose files were changed: before an epoch and while it is read, on several threads.
//
// What must hold: an epoch ends with an error that the store explains or with every batch, and where bad chunks are passed
// over with every batch; then what is said of these is so, and all of it. Rows of chunks that were not changed are right in
// any case, and so are those of a changed chunk with a checksum; samples that cannot be read do not arrive; an epoch never
// hangs; when the store is whole again, the same engine reads it right.

#include <sys/stat.h>

#include <chrono>
#include <exception>
#include <filesystem>

#include "base/bytes.h"
#include "fuzz/support/engine_input.h"
#include "spec/shard_spec.h"
#include "storage/shard_index.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::fuzzing::engine_fuzz {
namespace {

namespace fs = std::filesystem;

enum class Change { kByte, kTruncate, kAppend, kRemove, kSwap, kReplace, kDirectory, kPipe, kWord, kMetadata, kLink };
constexpr int64_t kNumChanges = 11;
constexpr uint64_t kTelling[] = {0, 1, 16, 0x7fffffff, 0x80000000, 0xffffffff, 0x7fffffffffffffff, ~uint64_t{0}};

/// The files of a store, changed and put back.
class Changer {
 public:
  Changer(const Store& store, bool missing_is_error) : store_(&store), missing_is_error_(missing_is_error) {}
  ~Changer() { restore(); }
  Changer(const Changer&) = delete;
  Changer& operator=(const Changer&) = delete;

  /// Changes a file. Before the epoch is read, it is known of some changes what follows.
  void change(Draw& draw, bool is_early) {
    const auto array = static_cast<size_t>(draw.pick(0, std::ssize(store_->files) - 1));
    const std::vector<fs::path>& files = store_->files[array];
    const int64_t chunks = std::ssize(files) - 1;
    const auto kind = static_cast<Change>(draw.pick(0, kNumChanges - 1));
    const fs::path& path =
        kind == Change::kMetadata ? files.back() : files[static_cast<size_t>(draw.pick(0, chunks - 1))];
    changed_.insert(path);
    if (!fs::is_regular_file(path)) return;  // changed before
    ByteVector content = testing::read_file(path);
    const auto position = [&](size_t room) {
      return content.size() < room ? 0 : static_cast<size_t>(draw.pick(0, 65'535)) % (content.size() - room + 1);
    };
    bool seen_by_checksum = false;
    switch (kind) {
      case Change::kByte:
        if (!content.empty()) content[position(1)] = draw.byte();
        seen_by_checksum = true;
        break;
      case Change::kTruncate:
        content.resize(position(0));
        seen_by_checksum = true;
        break;
      case Change::kAppend: {
        const Bytes more = draw.take(static_cast<size_t>(draw.pick(0, 32)));
        content.insert(content.end(), more.begin(), more.end());
        seen_by_checksum = true;
        break;
      }
      case Change::kSwap:
        content = store_->originals.at(files[static_cast<size_t>(draw.pick(0, chunks - 1))]);
        break;
      case Change::kReplace: {
        const Bytes other = draw.take(static_cast<size_t>(draw.pick(0, 255)));
        content.assign(other.begin(), other.end());
        break;
      }
      case Change::kWord:
        set_word(array, content, draw);
        break;
      default:
        break;
    }
    const bool is_lost = kind == Change::kDirectory || kind == Change::kPipe || kind == Change::kLink ||
                         (kind == Change::kRemove && missing_is_error_);
    if (kind == Change::kMetadata) {
      metadata_is_gone_ = true;
    } else {
      const std::pair<size_t, std::string> object(
          array, fs::relative(path, store_->data.arrays[array]->root()).generic_string());
      damage_.changed.insert(object);
      seen_by_checksum = seen_by_checksum && store_->layouts[array].packing == testing::Packing::kBloscThenCrc32c;
      // Before something else is in its place, a file is missing for a moment, in which the epoch may look for it.
      if (!seen_by_checksum && !(is_lost && is_early)) damage_.other.insert(object);
      if (is_lost && is_early) damage_.lost.insert(object);
    }
    put(path, kind, content);
  }

  void restore() {
    for (const fs::path& path : changed_) {
      fs::remove_all(path);
      testing::write_file(path, store_->originals.at(path));
    }
    changed_.clear();
  }

  [[nodiscard]] const Damage& damage() const { return damage_; }
  /// True if what was done explains that an epoch ends in an error.
  [[nodiscard]] bool explains_error(bool chunks_are_skipped) const {
    return metadata_is_gone_ || (!chunks_are_skipped && !damage_.changed.empty());
  }

 private:
  static void put(const fs::path& path, Change kind, const ByteVector& content) {
    if (kind == Change::kRemove || kind == Change::kMetadata || kind == Change::kDirectory || kind == Change::kPipe ||
        kind == Change::kLink) {
      fs::remove_all(path);
      if (kind == Change::kLink) fs::create_symlink("nowhere", path);
      if (kind == Change::kDirectory) fs::create_directory(path);
      if (kind == Change::kPipe) CHECK_EQ(mkfifo(path.c_str(), 0600), 0);
      return;
    }
    testing::write_file(path, content);
  }

  /// Sets a word of a header, or of the index of a shard, where the checksum is made right.
  void set_word(size_t array, ByteVector& content, Draw& draw) const {
    const ShardSpec& shard = store_->data.arrays[array]->field().array.shard;
    const uint64_t value = draw.coin() ? draw.one_of(kTelling) : static_cast<uint64_t>(draw.pick(0, 4095));
    if (!shard.is_sharded()) {
      if (content.size() >= 4) {
        const size_t at = 4 * static_cast<size_t>(draw.pick(0, 15)) % (content.size() - 3);
        testing::store_le32(content, at, static_cast<uint32_t>(value));
      }
      return;
    }
    const size_t bytes = stored_index_bytes(shard);
    if (content.size() < bytes) return;
    const size_t begin = shard.index_at_start ? 0 : content.size() - bytes;
    const size_t entries = bytes - 4;
    const size_t at = begin + 8 * static_cast<size_t>(draw.pick(0, 65'535) % static_cast<int64_t>(entries / 8));
    testing::store_le32(content, at, static_cast<uint32_t>(value));
    testing::store_le32(content, at + 4, static_cast<uint32_t>(value >> 32));
    testing::store_le32(content, begin + entries, crc32c(Bytes(content).subspan(begin, entries)));
  }

  const Store* store_;
  bool missing_is_error_;
  bool metadata_is_gone_ = false;
  std::set<fs::path> changed_;
  Damage damage_;
};

/// Reads to the end or to an error; changes the store again after `late_at` batches.
void read(Reader& reader, const Reading& reading, Changer& changer, Draw& draw, int64_t late, int64_t late_at) {
  try {
    reader.start(reading.stop_after);
    bool timed_out = false;
    int waits = 0;
    do {
      if (late > 0 && reader.taken() == late_at) {
        for (; late > 0; --late) changer.change(draw, false);
      }
      waits = timed_out ? waits + 1 : 0;
      CHECK(waits < kMaxWaits);
    } while (reader.take(std::chrono::milliseconds(100), changer.damage(), timed_out));
  } catch (const std::exception& error) {
    if (!is_refusal(error) || !changer.explains_error(reading.options.skip_bad)) throw;
  }
  reader.engine().stop();
}

void run_input(Bytes input) {
  Draw draw(input);
  const Store& one = draw_store(draw);
  const Reading reading = draw_reading(draw, one);
  const int64_t early = draw.pick(0, 4);
  const int64_t late = draw.pick(0, 2);
  const int64_t late_at = draw.pick(0, 3);
  Reader reader(one, one.data.fields(), reading);
  Changer changer(one, reading.options.missing_is_error);
  for (int64_t i = 0; i < early; ++i) changer.change(draw, true);
  read(reader, reading, changer, draw, late, late_at);
  changer.restore();
  // Decoded chunks and, where the consumer works, indices may be cached from epoch to epoch.
  if (reading.options.cache_bytes > 0 || reading.options.caller_runs) return;
  bool timed_out = false;
  int waits = 0;
  reader.start();
  while (reader.take(std::chrono::milliseconds(100), {}, timed_out)) {
    waits = timed_out ? waits + 1 : 0;
    CHECK(waits < kMaxWaits);
  }
  reader.engine().stop();
}

std::vector<ByteVector> make_seeds() {
  return make_reading_seeds([](Pen& pen, int64_t number) {
    const int64_t early = number % 3;
    const int64_t late = number % 4 == 0 ? 1 : 0;
    pen.pick(early, 0, 4).pick(late, 0, 2).pick(number % 4, 0, 3);
    for (int64_t i = 0; i < early + late; ++i) {
      const int64_t kind = (number + i) % kNumChanges;
      pen.pick(0, 0, 0).pick(kind, 0, kNumChanges - 1).byte(static_cast<uint8_t>(number * 5 + i));
      pen.byte(1).byte(static_cast<uint8_t>(number)).byte(static_cast<uint8_t>(number * 3)).byte(0xff);
    }
  });
}

std::vector<Finding> findings() {
  return {{"a header that names snappy ended an epoch that passes over bad chunks",
           "05000000 0f010002 07000000 32010000 00000041 0200"}};
}

const Target target("engine", run_input, make_seeds, findings, kSlowChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::engine_fuzz
