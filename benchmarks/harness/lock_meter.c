// Measures the mutexes of one library while it runs: preloaded, it stands before the pthread functions of glibc.
//
//   lock_meter_start(begin, end)  measure from now on what code at these addresses locks; 0 and 0: all code
//   lock_meter_stop()             stop; returns the nanoseconds since the start
//   lock_meter_read(i, out)       the i-th mutex that was locked; returns 0 if there are no more
//   lock_meter_cost()             nanoseconds that a hold seems to take in which nothing is done
//
// A hold that is longer than kLong counts by itself: mostly, the thread lost its processor. A wait on a condition ends a
// hold and begins another one. What is kept of a mutex is written by its holder alone, so the mutex itself guards it.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

enum { kSlots = 1 << 14 };
static const uint64_t kLong = 20000;

struct row {
  uint64_t mutex, locks, contended, held_ns, long_holds, long_ns;
};
struct slot {
  _Atomic(pthread_mutex_t*) mutex;
  uint64_t begin;
  struct row row;
};

static struct slot slots[kSlots];
static _Atomic(int) is_on;
static uint64_t began;
static uintptr_t low, high;  // of the module's code; 0 and 0: of every module's

static int (*real_lock)(pthread_mutex_t*);
static int (*real_trylock)(pthread_mutex_t*);
static int (*real_unlock)(pthread_mutex_t*);
static int (*real_wait)(pthread_cond_t*, pthread_mutex_t*);
static int (*real_timedwait)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
static int (*real_clockwait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);

__attribute__((constructor)) static void find(void) {
  if (real_lock != NULL) return;
  real_trylock = dlsym(RTLD_NEXT, "pthread_mutex_trylock");
  real_unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
  real_wait = dlsym(RTLD_NEXT, "pthread_cond_wait");
  real_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool is_ours(const void* caller) {
  return high == 0 || ((uintptr_t)caller >= low && (uintptr_t)caller < high);
}

// The slot of a mutex; null if there is none, and none is to be made or there is no room.
static struct slot* slot_of(pthread_mutex_t* mutex, bool make) {
  size_t at = ((uintptr_t)mutex >> 3) * 0x9E3779B97F4A7C15u >> 50;
  for (int tries = 0; tries < 64; ++tries, at = (at + 1) % kSlots) {
    pthread_mutex_t* there = atomic_load_explicit(&slots[at].mutex, memory_order_acquire);
    if (there == mutex) return &slots[at];
    if (there != NULL) continue;
    if (!make) return NULL;
    if (atomic_compare_exchange_strong(&slots[at].mutex, &there, mutex) || there == mutex) return &slots[at];
  }
  return NULL;
}

static void begin_hold(pthread_mutex_t* mutex, bool contended) {
  struct slot* const slot = slot_of(mutex, true);
  if (slot == NULL) return;
  slot->row.mutex = (uint64_t)(uintptr_t)mutex;
  slot->row.locks += 1;
  slot->row.contended += contended;
  slot->begin = now();
}

static bool end_hold(pthread_mutex_t* mutex) {
  struct slot* const slot = slot_of(mutex, false);
  if (slot == NULL || slot->begin == 0) return false;
  const uint64_t held = now() - slot->begin;
  slot->begin = 0;
  slot->row.held_ns += held <= kLong ? held : 0;
  slot->row.long_ns += held > kLong ? held : 0;
  slot->row.long_holds += held > kLong;
  return true;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  if (real_lock == NULL) find();
  if (!atomic_load_explicit(&is_on, memory_order_relaxed) || !is_ours(__builtin_return_address(0))) {
    return real_lock(mutex);
  }
  const bool contended = real_trylock(mutex) != 0;
  const int result = contended ? real_lock(mutex) : 0;
  if (result == 0) begin_hold(mutex, contended);
  return result;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  if (real_lock == NULL) find();
  if (atomic_load_explicit(&is_on, memory_order_relaxed)) end_hold(mutex);
  return real_unlock(mutex);
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (real_lock == NULL) find();
  const bool measured = atomic_load_explicit(&is_on, memory_order_relaxed) && end_hold(mutex);
  const int result = real_wait(condition, mutex);
  if (measured) begin_hold(mutex, false);
  return result;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const struct timespec* until) {
  if (real_lock == NULL) find();
  const bool measured = atomic_load_explicit(&is_on, memory_order_relaxed) && end_hold(mutex);
  const int result = real_timedwait(condition, mutex, until);
  if (measured) begin_hold(mutex, false);
  return result;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  if (real_lock == NULL) find();
  const bool measured = atomic_load_explicit(&is_on, memory_order_relaxed) && end_hold(mutex);
  const int result = real_clockwait(condition, mutex, clock, until);
  if (measured) begin_hold(mutex, false);
  return result;
}

void lock_meter_start(uint64_t code_begin, uint64_t code_end) {
  low = (uintptr_t)code_begin;
  high = (uintptr_t)code_end;
  memset(slots, 0, sizeof slots);
  began = now();
  atomic_store(&is_on, 1);
}

uint64_t lock_meter_stop(void) {
  atomic_store(&is_on, 0);
  return now() - began;
}

int lock_meter_read(int number, struct row* out) {
  for (int at = 0; at < kSlots; ++at) {
    if (slots[at].row.locks == 0 || number-- > 0) continue;
    *out = slots[at].row;
    return 1;
  }
  return 0;
}

uint64_t lock_meter_cost(void) {
  enum { kTimes = 100000 };
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  lock_meter_start(0, 0);
  for (int i = 0; i < kTimes; ++i) {
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
  }
  lock_meter_stop();
  struct slot* const slot = slot_of(&mutex, false);
  return slot == NULL ? 0 : slot->row.held_ns / kTimes;
}
