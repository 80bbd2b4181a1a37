/* Faults in the calls by which a process opens, reads and writes files: preloaded, and told by shim.py what to do.

   Nothing happens until a rule is added, and then only to calls on files that the rule names. Calls are looked up by
   name in the next library, so that nothing but the calls below knows of this one. For 64-bit Linux. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008
#endif

enum { kOpen = 1, kRead = 2, kReadCached = 4, kWrite = 8, kOpened = 16 };
enum { kMaxRules = 4, kMaxPath = 4096 };

/* As `_Rule` in shim.py. */
struct rule {
  char path[kMaxPath]; /* a file, or all files below a directory: then it ends with a slash */
  int64_t calls;       /* which, of the enum above; kOpened: an open that succeeded, before it returns */
  int64_t error;       /* errno of the call; 0: the call is made */
  int64_t skip;        /* so many calls are let through first */
  int64_t times;       /* then at most so many are acted on; -1: all */
  double chance;       /* of each call to be acted on */
  uint64_t seed;       /* of `chance` and `most_bytes` */
  int64_t stall_ms;    /* waits before it does anything else */
  int64_t most_bytes;  /* a read or write takes from 1 to so many; 0: any number */
  int64_t room;        /* so many bytes are written before `error`; -1: no matter */
  void (*hook)(const char* path);
  int64_t seen, acted;
};

static struct rule rules[kMaxRules];
static atomic_int num_rules;
static uint64_t generation; /* a stall ends with the rules of its time */
static int stalled;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static __thread int in_hook;

void shim_clear(void) {
  pthread_mutex_lock(&mutex);
  atomic_store(&num_rules, 0);
  ++generation;
  pthread_cond_broadcast(&changed);
  while (stalled > 0) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

int shim_add(const struct rule* rule) {
  int number = -1;
  pthread_mutex_lock(&mutex);
  if (num_rules < kMaxRules) {
    number = num_rules;
    rules[number] = *rule;
    atomic_store(&num_rules, number + 1);
  }
  pthread_mutex_unlock(&mutex);
  return number;
}

int64_t shim_acted(int number) {
  pthread_mutex_lock(&mutex);
  const int64_t acted = rules[number].acted;
  pthread_mutex_unlock(&mutex);
  return acted;
}

static uint64_t draw(struct rule* rule) {
  rule->seed += 0x9e3779b97f4a7c15u; /* splitmix64 */
  uint64_t z = rule->seed;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static int matches(const struct rule* rule, const char* path) {
  const size_t length = strlen(rule->path);
  if (strncmp(rule->path, path, length) != 0) return 0;
  /* An open file that was removed since is shown as "NAME (deleted)". */
  return rule->path[length - 1] == '/' || path[length] == '\0' || path[length] == ' ';
}

static void stall(int64_t ms) {
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += ms / 1000;
  end.tv_nsec += ms % 1000 * 1000000;
  if (end.tv_nsec >= 1000000000) {
    ++end.tv_sec;
    end.tv_nsec -= 1000000000;
  }
  const uint64_t mine = generation;
  ++stalled;
  while (generation == mine && pthread_cond_timedwait(&changed, &mutex, &end) == 0) {
  }
  --stalled;
  pthread_cond_broadcast(&changed);
}

/* Acts on a call. Returns -1 with errno if it fails; else the number of bytes that it may take, of `size`. */
static ssize_t act(int call, const char* path, size_t size) {
  if (in_hook) return (ssize_t)size;
  ssize_t most = (ssize_t)size;
  int error = 0;
  void (*hook)(const char*) = NULL;
  pthread_mutex_lock(&mutex);
  for (int i = 0; i < num_rules; ++i) {
    struct rule* rule = &rules[i];
    if (!(rule->calls & call) || !matches(rule, path)) continue;
    if (rule->seen++ < rule->skip || rule->acted == rule->times) continue;
    if (rule->chance < 1 && (double)(draw(rule) >> 11) * 0x1p-53 >= rule->chance) continue;
    if (rule->room > 0) { /* the disk is not yet full; the last write before it is takes what there is room for */
      if (most > rule->room) most = rule->room;
      rule->room -= most;
      break;
    }
    ++rule->acted;
    if (rule->most_bytes > 0 && most > 0) {
      const ssize_t bound = most < rule->most_bytes ? most : rule->most_bytes;
      most = 1 + (ssize_t)(draw(rule) % (uint64_t)bound);
    }
    error = (int)rule->error;
    hook = rule->hook;
    if (rule->stall_ms > 0) stall(rule->stall_ms);
    break;
  }
  pthread_mutex_unlock(&mutex);
  if (hook != NULL) {
    in_hook = 1;
    hook(path);
    in_hook = 0;
  }
  if (error == 0) return most;
  errno = error;
  return -1;
}

static int path_of(int fd, char* path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, kMaxPath - 1);
  if (length < 0) return 0;
  path[length] = '\0';
  return 1;
}

static ssize_t act_on(int call, int fd, size_t size) {
  char path[kMaxPath];
  const int before = errno;
  if (num_rules == 0 || !path_of(fd, path)) return (ssize_t)size;
  errno = before;
  return act(call, path, size);
}

/* The call behind ours, of the same name. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int open_at(int directory, const char* name, int flags, mode_t mode) {
  static __typeof__(&openat64) next;
  if (next == NULL) next = NEXT(openat64);
  if (num_rules == 0 || (flags & O_DIRECTORY)) return next(directory, name, flags, mode);
  char path[2 * kMaxPath];
  size_t length = 0;
  if (name[0] != '/' && directory != AT_FDCWD && path_of(directory, path)) {
    length = strlen(path);
    path[length++] = '/';
  }
  snprintf(path + length, sizeof path - length, "%s", name);
  if (act(kOpen, path, 0) < 0) return -1;
  const int fd = next(directory, name, flags, mode);
  if (fd >= 0) act(kOpened, path, 0);
  return fd;
}

#define MODE_OF(flags, mode)               \
  mode_t mode = 0;                         \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list arguments;                     \
    va_start(arguments, flags);            \
    mode = va_arg(arguments, mode_t);      \
    va_end(arguments);                     \
  }

int open(const char* name, int flags, ...) {
  MODE_OF(flags, mode)
  return open_at(AT_FDCWD, name, flags, mode);
}

int open64(const char* name, int flags, ...) {
  MODE_OF(flags, mode)
  return open_at(AT_FDCWD, name, flags, mode);
}

int openat(int directory, const char* name, int flags, ...) {
  MODE_OF(flags, mode)
  return open_at(directory, name, flags, mode);
}

int openat64(int directory, const char* name, int flags, ...) {
  MODE_OF(flags, mode)
  return open_at(directory, name, flags, mode);
}

ssize_t read(int fd, void* out, size_t size) {
  static __typeof__(&read) next;
  if (next == NULL) next = NEXT(read);
  const ssize_t most = act_on(kRead, fd, size);
  return most < 0 ? most : next(fd, out, (size_t)most);
}

static ssize_t read_at(int fd, void* out, size_t size, off_t offset) {
  static __typeof__(&pread64) next;
  if (next == NULL) next = NEXT(pread64);
  const ssize_t most = act_on(kRead, fd, size);
  return most < 0 ? most : next(fd, out, (size_t)most, offset);
}

ssize_t pread(int fd, void* out, size_t size, off_t offset) {
  return read_at(fd, out, size, offset);
}

ssize_t pread64(int fd, void* out, size_t size, off64_t offset) {
  return read_at(fd, out, size, offset);
}

/* Cuts short only what has one piece, as all calls of the engine do. */
static ssize_t read_pieces_at(int fd, const struct iovec* pieces, int count, off_t offset, int flags) {
  static __typeof__(&preadv64v2) next;
  if (next == NULL) next = NEXT(preadv64v2);
  if (count != 1) return next(fd, pieces, count, offset, flags);
  const ssize_t most = act_on(flags & RWF_NOWAIT ? kReadCached : kRead, fd, pieces->iov_len);
  if (most < 0) return most;
  const struct iovec piece = {pieces->iov_base, (size_t)most};
  return next(fd, &piece, 1, offset, flags);
}

ssize_t preadv2(int fd, const struct iovec* pieces, int count, off_t offset, int flags) {
  return read_pieces_at(fd, pieces, count, offset, flags);
}

ssize_t preadv64v2(int fd, const struct iovec* pieces, int count, off64_t offset, int flags) {
  return read_pieces_at(fd, pieces, count, offset, flags);
}

ssize_t write(int fd, const void* data, size_t size) {
  static __typeof__(&write) next;
  if (next == NULL) next = NEXT(write);
  const ssize_t most = act_on(kWrite, fd, size);
  return most < 0 ? most : next(fd, data, (size_t)most);
}

static ssize_t write_at(int fd, const void* data, size_t size, off_t offset) {
  static __typeof__(&pwrite64) next;
  if (next == NULL) next = NEXT(pwrite64);
  const ssize_t most = act_on(kWrite, fd, size);
  return most < 0 ? most : next(fd, data, (size_t)most, offset);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return write_at(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return write_at(fd, data, size, offset);
}
