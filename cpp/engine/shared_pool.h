#pragma once
// Batch memory that one process writes and others read: slots of a file without a name, which are used again.
//
// The owner is the process that created the pool, a DataLoader worker. It fills a slot and sends a handle; the process
// that takes the handle over reads the slot where it is. Each process maps the file once: it reserves addresses for
// the largest file, and only written pages take memory. A table in the file has a word for each slot:
//
//   leases      tensors over the slot, in all processes
//   messages    handles that were sent and not taken over yet
//   generation  number of times that the slot was acquired
//
// Invariants:
//   1. A slot is free if it has no lease and no message. Only the owner takes a free slot, and it writes to a slot only
//      between acquire() and the first share(). So memory that a reader can see is never written.
//   2. Whoever adds a lease or a message has a lease or a message, so a free slot stays free for all but the owner.
//   3. A handle is taken over once, in the generation in which it was sent. To take a handle over twice is an error.
//   4. A process ends only leases that it began. A forked child inherits tensors of another process's pool: it sees the
//      slot's pages where they are, and gets a copy of a page when it writes to it. The slot has a lease for the child.
//      The owner ends that lease when it finds that the child has ended; of a pool that is over, the memory goes back
//      to the system with the last process that maps it. Of its own pools, a child gets a copy of each leased slot. If
//      the fork fails, the leases end at once.
//   5. Words of a process that was killed stay as they are. Such slots are lost: the pool is bounded, and acquire()
//      refuses then.
//   6. A handle names its pool by the id. A process maps no pool for a handle but the one with that id, and keeps it
//      while messages of a living owner are under way, also after the owner retired it.
//   7. A slot that moves gets addresses that no slot ever had, and pages that were given back are not written again. So
//      a device that copies from the pages of a slot, by their addresses in memory, never sees stale ones.
//   8. Slots begin and end where pages of the system do, whatever their size is there. So an operation on pages of a
//      slot, such as giving them back, touches no other slot.
// No process waits for another one: words change by compare and exchange.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace zarrfeed {

class SharedPool : public std::enable_shared_from_this<SharedPool> {
 public:
  static constexpr uint32_t kMaxSlots = 1 << 15;

  /// Memory of a slot, as long as `keeps` or a copy of it is there.
  struct Lease {
    uint8_t* data;
    std::shared_ptr<void> keeps;
  };
  /// A slot with its whole memory. While `pool` or a copy of it is there, the memory stays mapped.
  struct FoundSlot {
    std::shared_ptr<SharedPool> pool;
    uint8_t* data;
    size_t bytes;
  };
  /// The position of bytes in a slot, as another process finds them.
  struct Handle {
    uint32_t slot;
    uint32_t generation;
    size_t begin;  ///< in the slot
    size_t bytes;
  };

  /// Makes an empty pool, owned by this process, with an id that no other pool of the machine has. Slots are added as
  /// long as other processes hold at most `most_held_bytes`. Throws Error(kUnsupported) if the system has no files
  /// without a name, or limits the addresses of a process.
  static std::shared_ptr<SharedPool> create(uint64_t id, size_t most_held_bytes);
  /// Maps the pool of another process that has this id. find() returns it from then on, until forget_over(). Takes the
  /// descriptor over, also when it throws. Throws Error(kIo) if the system does not map it, Error(kCorrupt) if it is no
  /// pool, or a pool with another id: a descriptor's number may be another file's by the time that it is opened.
  static std::shared_ptr<SharedPool> open(int descriptor, uint64_t id);
  /// The pool with an id that this process created or opened, or null.
  static std::shared_ptr<SharedPool> find(uint64_t id);
  /// The slot, of any pool, in which an address lies and of which this process has a lease. No value if there is none.
  /// An operation on its pages, such as pinning, holds as long as they are mapped: a slot never gets other pages at the
  /// same addresses.
  static std::optional<FoundSlot> find_slot(const uint8_t* data);
  /// Unmaps the pools that are over, each when its last lease of this process ends. Thread-safe; the end of a lease of
  /// a pool that is over does the same.
  static void forget_over();
  ~SharedPool();
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;

  /// Takes a free slot, or a new one. No value if the pool is used up, was retired, or this process does not own it.
  std::optional<Lease> acquire(size_t bytes);
  /// Makes a handle of bytes in a slot that this process has a lease of. No value if they lie in none, or if the pool
  /// was retired. Owner only.
  std::optional<Handle> share(const uint8_t* data, size_t bytes);
  /// Makes a lease of the bytes that a handle names. Throws Error(kConfig) if the handle was taken over before.
  Lease take_over(const Handle& handle);
  /// Gives the memory of free slots back to the system, now and when others become free. Owner only.
  void retire();

  /// Descriptor of the file, or -1 in a process that opened the pool: such a process keeps the mapping alone.
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] uint64_t id() const;
  [[nodiscard]] pid_t owner() const;
  /// True if another process has mapped the pool.
  [[nodiscard]] bool is_opened() const;
  /// True if the owner will send nothing more: it retired the pool, or has ended. A process that has the owner's id
  /// now counts as the owner.
  [[nodiscard]] bool is_over() const;
  /// True if handles were sent and not taken over yet.
  [[nodiscard]] bool has_messages() const;
  /// Leases of this process.
  [[nodiscard]] size_t num_leases() const;
  /// Slots that were ever made, and their bytes.
  [[nodiscard]] size_t num_slots() const;
  [[nodiscard]] size_t slot_bytes() const;

 private:
  struct Table;
  /// The facts about a slot that this process knows.
  struct Local {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    size_t leases = 0;
    bool is_inherited = false;  ///< for a fork under way: the child has a lease
  };
  /// The result of the last search for a free slot, if no free slot was large enough.
  struct Scan {
    bool is_valid = false;
    uint64_t changes = 0;  ///< the table's count of changes at that time
    uint64_t bytes = 0;    ///< bytes that were wanted
    uint64_t free_bytes = 0;
    uint64_t held_bytes = 0;
    std::optional<uint32_t> roomiest;
  };
  struct Registry;

  SharedPool(int descriptor, uint8_t* base, uint8_t* view, size_t most_held_bytes);

  bool is_awaited() const;
  std::optional<uint32_t> slot_at(uint64_t offset) const;
  std::optional<uint32_t> find_free(uint64_t bytes);
  std::optional<uint32_t> make_slot(uint64_t bytes);
  Lease lease(uint32_t slot, uint64_t begin);
  void end_lease(uint32_t slot);
  void release(uint32_t slot);
  bool note_inherited(uint32_t slot);
  void end_leases_of_children();
  void drop_pages();

  void before_fork();
  void after_fork_in_parent(bool has_child);
  void after_fork_in_child();

  const int descriptor_;
  uint8_t* const base_;
  uint8_t* const view_;  ///< a second mapping of the file for forked children, or null
  Table* const table_;
  const uint64_t reserved_;  ///< addresses from `base_` on; the table is memory of others, too
  const size_t most_held_bytes_;
  const pid_t process_;
  mutable std::mutex mutex_;
  std::vector<Local> locals_;
  std::map<uint64_t, uint32_t> by_offset_;  ///< slot at each offset; only the owner fills it
  Scan scan_;
  uint32_t next_ = 0;      ///< first slot to look at for a free one: the slot that was sent the longest ago
  uint32_t acquired_ = 0;  ///< number of searches for a slot while children had leases
  uint64_t end_;           ///< end of the slots in the file
  bool is_final_ = false;  ///< for a fork under way: no process writes to a slot again
};

}  // namespace zarrfeed
