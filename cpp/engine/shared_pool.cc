#include "engine/shared_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/huge_pages.h"
#include "base/process.h"
#include "engine/pool_file.h"
#include "engine/slot_word.h"

namespace zarrfeed {
namespace {

constexpr uint64_t kMagic = 0x7a66706f6f6c0003;

/// Slots of a living owner that forked children see. A child without an entry here gets a copy.
constexpr size_t kMaxInherited = 2048;
/// The owner looks after so many slots which children ended.
constexpr uint32_t kLooksApart = 16;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

struct SharedPool::Table {
  struct Slot {
    std::atomic<uint64_t> word;
    // Written by the owner while the slot is free.
    std::atomic<uint64_t> offset;
    std::atomic<uint64_t> bytes;
  };

  /// A lease of a forked child, which ends when the owner finds that the child has ended.
  struct Inherited {
    std::atomic<uint64_t> holder;  ///< process << 32 | slot + 1; 0: none
    std::atomic<uint64_t> start;   ///< of the process; 0 until the owner looked
  };

  uint64_t magic;
  uint64_t id;
  uint64_t reserved;     ///< bytes of the file
  uint64_t owner_start;  ///< which of the processes that have the owner's id one after another
  pid_t owner;
  std::atomic<uint32_t> is_opened;
  std::atomic<uint32_t> is_retired;
  std::atomic<uint32_t> num_slots;
  std::atomic<uint64_t> changes;  ///< how often a slot was taken over or became free; else a second look is in vain
  std::atomic<uint32_t> num_inherited;
  Inherited inherited[kMaxInherited];
  Slot slots[kMaxSlots];
};

/// All pools of this process. Its lock and theirs are held while the process forks.
struct SharedPool::Registry {
  std::mutex mutex;
  std::set<SharedPool*> pools;
  std::vector<std::shared_ptr<SharedPool>> opened;

  static Registry& instance() {
    static auto* const registry = new Registry;  // never deleted: tensors may outlive everything
    static const bool is_watched = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
    static_cast<void>(is_watched);
    return *registry;
  }
  /// With the lock. A pool that is being deleted, or that a forked child inherited, is not found.
  std::shared_ptr<SharedPool> find(uint64_t id) const {
    for (SharedPool* pool : pools) {
      if (pool->table_->id != id || pool->process_ != process_id()) continue;
      if (auto found = pool->weak_from_this().lock()) return found;
    }
    return nullptr;
  }

  static void before_fork() {
    Registry& registry = instance();
    registry.mutex.lock();
    for (SharedPool* pool : registry.pools) pool->before_fork();
    errno = 0;  // for after_fork_in_parent
  }
  /// Called also when fork() fails, and then `errno` says why.
  static void after_fork_in_parent() {
    const bool has_child = errno != EAGAIN && errno != ENOMEM && errno != ENOSYS;
    Registry& registry = instance();
    for (SharedPool* pool : registry.pools) pool->after_fork_in_parent(has_child);
    registry.mutex.unlock();
  }
  static void after_fork_in_child() {
    Registry& registry = instance();
    for (SharedPool* pool : registry.pools) pool->after_fork_in_child();
    registry.mutex.unlock();
  }
};

SharedPool::SharedPool(int descriptor, uint8_t* base, uint8_t* view, size_t most_held_bytes)
    : descriptor_(descriptor),
      base_(base),
      view_(view),
      table_(reinterpret_cast<Table*>(base)),
      reserved_(table_->reserved),
      most_held_bytes_(most_held_bytes),
      process_(process_id()),
      end_(round_up(sizeof(Table), kHugePage)) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.pools.insert(this);
}

std::shared_ptr<SharedPool> SharedPool::create(uint64_t id, size_t most_held_bytes) {
  const int descriptor = make_file();
  const uint64_t reserved = most_reserved();
  uint8_t* base = nullptr;
  if (ftruncate(descriptor, static_cast<off_t>(reserved)) == 0) base = map_file(descriptor, reserved);
  if (base == nullptr) {
    const int error = errno;
    close(descriptor);
    throw Error::io("memory for batches of a DataLoader worker cannot be mapped", error);
  }
  auto* const table = reinterpret_cast<Table*>(base);  // zeros, which is what an empty table is
  table->magic = kMagic;
  table->id = id;
  table->reserved = reserved;
  table->owner = process_id();
  table->owner_start = process_start(table->owner);
  return std::shared_ptr<SharedPool>(new SharedPool(descriptor, base, nullptr, most_held_bytes));
}

std::shared_ptr<SharedPool> SharedPool::open(int descriptor, uint64_t id) {
  struct stat status{};
  const bool is_file = fstat(descriptor, &status) == 0;
  const auto reserved = static_cast<uint64_t>(status.st_size);
  if (is_file && reserved < sizeof(Table)) {
    close(descriptor);
    throw_corrupt("a file that a DataLoader worker sent has no batches");
  }
  uint8_t* const base = is_file ? map_file(descriptor, reserved) : nullptr;
  if (base == nullptr) {
    const int error = errno;
    close(descriptor);
    throw Error::io("batches of a DataLoader worker cannot be mapped", error);
  }
  auto* const table = reinterpret_cast<Table*>(base);
  const bool is_pool = table->magic == kMagic && table->reserved == reserved;
  if (!is_pool || table->id != id) {
    munmap(base, reserved);
    close(descriptor);
    throw_corrupt(is_pool ? "the descriptor of a DataLoader worker's pool is another pool's now"
                          : "a file that a DataLoader worker sent has no batches");
  }
  uint8_t* const view = map_view(descriptor, reserved);
  close(descriptor);  // the mappings keep the file
  const std::shared_ptr<SharedPool> pool(new SharedPool(-1, base, view, 0));
  Registry& registry = Registry::instance();
  forget_over();
  const std::lock_guard lock(registry.mutex);
  registry.opened.push_back(pool);
  table->is_opened.store(1);
  return pool;
}

std::shared_ptr<SharedPool> SharedPool::find(uint64_t id) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  return registry.find(id);
}

std::optional<SharedPool::FoundSlot> SharedPool::find_slot(const uint8_t* data) {
  std::shared_ptr<SharedPool> found;  // may be the last reference by now: dropped without the locks
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  for (SharedPool* pool : registry.pools) {
    const uint64_t offset = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(pool->base_);
    if (offset >= pool->reserved_ || pool->process_ != process_id()) continue;
    found = pool->weak_from_this().lock();
    if (!found) return std::nullopt;
    const std::lock_guard pool_lock(pool->mutex_);
    const auto slot = pool->slot_at(offset);
    if (!slot) return std::nullopt;
    const Local& local = pool->locals_[*slot];
    return FoundSlot{std::move(found), pool->base_ + local.offset, local.bytes};
  }
  return std::nullopt;
}

/// With the lock: the slot with a lease of this process in which an offset lies.
std::optional<uint32_t> SharedPool::slot_at(uint64_t offset) const {
  for (uint32_t slot = 0; slot < locals_.size(); ++slot) {
    const Local& local = locals_[slot];
    if (local.leases > 0 && offset >= local.offset && offset - local.offset < local.bytes) return slot;
  }
  return std::nullopt;
}

void SharedPool::forget_over() {
  std::vector<std::shared_ptr<SharedPool>> over;  // deleted without the lock
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  const auto first = std::stable_partition(registry.opened.begin(), registry.opened.end(),
                                           [](const auto& pool) { return pool->is_awaited(); });
  over.assign(std::make_move_iterator(first), std::make_move_iterator(registry.opened.end()));
  registry.opened.erase(first, registry.opened.end());
}

/// True if handles may still come to this process, which opened the pool.
bool SharedPool::is_awaited() const {
  if (process_ != process_id() || !is_running(table_->owner, table_->owner_start)) return false;
  return table_->is_retired.load() == 0 || has_messages();
}

SharedPool::~SharedPool() {
  {
    Registry& registry = Registry::instance();
    const std::lock_guard lock(registry.mutex);
    registry.pools.erase(this);
  }
  if (process_id() == process_ && table_->owner == process_) retire();
  munmap(base_, reserved_);
  if (view_ != nullptr) munmap(view_, reserved_);
  if (descriptor_ >= 0) close(descriptor_);
}

std::optional<SharedPool::Lease> SharedPool::acquire(size_t bytes) {
  if (process_id() != process_ || table_->owner != process_) return std::nullopt;
  const uint64_t whole = round_up(std::max<size_t>(bytes, 1), page_size());
  const std::lock_guard lock(mutex_);
  if (table_->is_retired.load() != 0) return std::nullopt;
  auto slot = find_free(whole);
  if (!slot) slot = make_slot(whole);
  if (!slot) return std::nullopt;
  std::atomic<uint64_t>& word = table_->slots[*slot].word;
  // Nobody else changes the word of a free slot. Acquire: what others read there was read.
  const uint64_t before = word.load(std::memory_order_acquire);
  word.store(before + kGeneration + kLease, std::memory_order_relaxed);
  return lease(*slot, 0);
}

/// A free slot with room for so many bytes that is not much larger.
std::optional<uint32_t> SharedPool::find_free(uint64_t bytes) {
  if (table_->num_inherited.load() != 0 && ++acquired_ % kLooksApart == 0) end_leases_of_children();
  const uint32_t count = table_->num_slots.load();
  const uint64_t changes = table_->changes.load(std::memory_order_acquire);
  if (scan_.is_valid && scan_.changes == changes && scan_.bytes == bytes) return std::nullopt;
  scan_ = {};
  Scan scan{true, changes, bytes, 0, 0, std::nullopt};
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t slot = next_ + i < count ? next_ + i : next_ + i - count;
    const uint64_t room = locals_[slot].bytes;
    const uint64_t word = table_->slots[slot].word.load(std::memory_order_acquire);
    if (!is_free(word)) {
      if (leases_of(word) > locals_[slot].leases) scan.held_bytes += room;
      continue;
    }
    if (room >= bytes && room <= bytes + bytes / 4) {
      next_ = slot + 1 == count ? 0 : slot + 1;
      return slot;
    }
    scan.free_bytes += room;
    if (!scan.roomiest || room > locals_[*scan.roomiest].bytes) scan.roomiest = slot;
  }
  scan_ = scan;
  return std::nullopt;
}

/// A new slot or, where free ones take much memory, the one of them with the most room, which gets more if need be.
std::optional<uint32_t> SharedPool::make_slot(uint64_t bytes) {
  if (scan_.held_bytes > most_held_bytes_) return std::nullopt;
  uint32_t slot = table_->num_slots.load();
  const bool is_new = scan_.free_bytes <= most_held_bytes_ && slot < kMaxSlots;
  if (!is_new) {
    if (!scan_.roomiest) return std::nullopt;
    slot = *scan_.roomiest;
    scan_ = {};
    if (locals_[slot].bytes >= bytes) return slot;
  }
  const uint64_t offset = round_up(end_, bytes >= kHugePage ? kHugePage : page_size());
  if (offset + bytes > reserved_) return std::nullopt;
  end_ = offset + bytes;
  if (is_new) {
    locals_.emplace_back();
  } else {
    remove_pages(base_ + locals_[slot].offset, locals_[slot].bytes);
    by_offset_.erase(locals_[slot].offset);
  }
  by_offset_[offset] = slot;
  locals_[slot].offset = offset;
  locals_[slot].bytes = bytes;
  table_->slots[slot].offset.store(offset);
  table_->slots[slot].bytes.store(bytes);
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePage) madvise(base_ + offset, bytes, MADV_HUGEPAGE);
#endif
  if (is_new) table_->num_slots.store(slot + 1);
  return slot;
}

std::optional<SharedPool::Handle> SharedPool::share(const uint8_t* data, size_t bytes) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(base_);
  if (process_id() != process_ || table_->owner != process_ || offset >= reserved_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (table_->is_retired.load() != 0) return std::nullopt;
  const auto after = by_offset_.upper_bound(offset);
  if (after == by_offset_.begin()) return std::nullopt;
  const uint32_t slot = std::prev(after)->second;
  const uint64_t begin = offset - locals_[slot].offset;
  if (locals_[slot].leases == 0 || begin > locals_[slot].bytes || bytes > locals_[slot].bytes - begin) {
    return std::nullopt;
  }
  std::atomic<uint64_t>& word = table_->slots[slot].word;
  uint64_t before = word.load(std::memory_order_relaxed);
  do {
    if (messages_of(before) == kMost) return std::nullopt;
  } while (!word.compare_exchange_weak(before, before + kMessage, std::memory_order_acq_rel));
  return Handle{slot, generation_of(before), begin, bytes};
}

SharedPool::Lease SharedPool::take_over(const Handle& handle) {
  if (handle.slot >= table_->num_slots.load()) throw Error(ErrorKind::kConfig, "a batch lies in no slot of its worker");
  const std::lock_guard lock(mutex_);
  Table::Slot& slot = table_->slots[handle.slot];
  uint64_t before = slot.word.load(std::memory_order_acquire);
  do {
    if (generation_of(before) != handle.generation || messages_of(before) == 0 || leases_of(before) == kMost) {
      throw Error(ErrorKind::kConfig,
                  "a batch of a DataLoader worker was unpickled a second time: pickled bytes of it can be used once");
    }
  } while (!slot.word.compare_exchange_weak(before, before - kMessage + kLease, std::memory_order_acq_rel));
  table_->changes.fetch_add(1, std::memory_order_release);
  if (handle.slot >= locals_.size()) locals_.resize(handle.slot + 1);
  Local& local = locals_[handle.slot];
  if (local.offset != slot.offset.load() || local.bytes != slot.bytes.load()) {
    local.offset = slot.offset.load();
    local.bytes = slot.bytes.load();
    map_pages(base_ + local.offset, local.bytes);
  }
  if (handle.begin > local.bytes || handle.bytes > local.bytes - handle.begin) {
    end_lease(handle.slot);
    throw Error(ErrorKind::kConfig, "a batch is larger than its slot");
  }
  return lease(handle.slot, handle.begin);
}

/// With the lock, of a slot whose word has the lease.
SharedPool::Lease SharedPool::lease(uint32_t slot, uint64_t begin) {
  ++locals_[slot].leases;
  uint8_t* const data = base_ + locals_[slot].offset + begin;
  return {data, std::shared_ptr<void>(data, [pool = shared_from_this(), slot](void*) { pool->release(slot); })};
}

void SharedPool::end_lease(uint32_t slot) {
  // Release: what this process read in the slot was read before.
  const uint64_t before = table_->slots[slot].word.fetch_sub(kLease, std::memory_order_acq_rel);
  if (is_free(before - kLease)) table_->changes.fetch_add(1, std::memory_order_release);
}

bool SharedPool::note_inherited(uint32_t slot) {
  const uint64_t holder = static_cast<uint64_t>(getpid()) << 32 | (slot + 1);
  for (Table::Inherited& one : table_->inherited) {
    uint64_t none = 0;
    if (!one.holder.compare_exchange_strong(none, holder)) continue;
    table_->num_inherited.fetch_add(1);
    return true;
  }
  return false;
}

void SharedPool::end_leases_of_children() {
  for (Table::Inherited& one : table_->inherited) {
    const uint64_t holder = one.holder.load();
    if (holder == 0) continue;
    const auto process = static_cast<pid_t>(holder >> 32);
    if (is_running(process, one.start.load())) {
      if (one.start.load() == 0) one.start.store(process_start(process));
      continue;
    }
    one.start.store(0);
    one.holder.store(0);
    table_->num_inherited.fetch_sub(1);
    end_lease(static_cast<uint32_t>(holder) - 1);
  }
}

void SharedPool::release(uint32_t slot) {
  if (process_id() != process_) return;
  {
    const std::lock_guard lock(mutex_);
    --locals_[slot].leases;
    end_lease(slot);
  }
  if (!is_over()) return;
  drop_pages();
  forget_over();
}

void SharedPool::retire() {
  {
    const std::lock_guard lock(mutex_);  // so whoever sees this sees what was acquired before
    table_->is_retired.store(1);
  }
  drop_pages();
}

void SharedPool::drop_pages() {
  const std::lock_guard lock(mutex_);
  for (uint32_t slot = 0; slot < table_->num_slots.load(); ++slot) {
    const Table::Slot& one = table_->slots[slot];
    if (is_free(one.word.load(std::memory_order_acquire))) remove_pages(base_ + one.offset.load(), one.bytes.load());
  }
}

pid_t SharedPool::owner() const {
  return table_->owner;
}

uint64_t SharedPool::id() const {
  return table_->id;
}

bool SharedPool::has_messages() const {
  const std::span slots(table_->slots, table_->num_slots.load());
  return std::ranges::any_of(slots, [](const Table::Slot& slot) { return messages_of(slot.word.load()) > 0; });
}

bool SharedPool::is_opened() const {
  return table_->is_opened.load() != 0;
}

bool SharedPool::is_over() const {
  if (table_->is_retired.load() != 0) return true;
  return table_->owner != process_ && kill(table_->owner, 0) != 0 && errno == ESRCH;
}

size_t SharedPool::num_leases() const {
  const std::lock_guard lock(mutex_);
  size_t total = 0;
  for (const Local& local : locals_) total += local.leases;
  return total;
}

size_t SharedPool::num_slots() const {
  return table_->num_slots.load();
}

size_t SharedPool::slot_bytes() const {
  size_t total = 0;
  for (uint32_t slot = 0; slot < table_->num_slots.load(); ++slot) total += table_->slots[slot].bytes.load();
  return total;
}

void SharedPool::before_fork() {
  mutex_.lock();
  if (process_id() != process_) return;  // inherited: the child of this child inherits private memory
  is_final_ = is_over();
  for (uint32_t slot = 0; slot < locals_.size(); ++slot) {
    locals_[slot].is_inherited = locals_[slot].leases > 0;
    if (locals_[slot].is_inherited) table_->slots[slot].word.fetch_add(kLease, std::memory_order_acq_rel);
  }
}

void SharedPool::after_fork_in_parent(bool has_child) {
  for (uint32_t slot = 0; slot < locals_.size(); ++slot) {
    if (std::exchange(locals_[slot].is_inherited, false) && !has_child) end_lease(slot);
  }
  mutex_.unlock();
}

void SharedPool::after_fork_in_child() {
  for (uint32_t slot = 0; slot < locals_.size(); ++slot) {
    Local& local = locals_[slot];
    if (!std::exchange(local.is_inherited, false)) continue;
    // The lease stays, so that nobody writes to the slot or gives its pages back.
    uint8_t* const base = base_ + local.offset;
    if (view_ != nullptr && (is_final_ || note_inherited(slot))) {
      if (show_view(base, view_ + local.offset, local.bytes)) continue;
      if (!is_final_) {  // until this process ends
        make_private(base, local.bytes);
        continue;
      }
    }
    // Without memory for the copy the lease stays, and the slot is lost.
    if (make_private(base, local.bytes)) end_lease(slot);
  }
  mutex_.unlock();
}

}  // namespace zarrfeed
