// The loop of STREAM's triad, a[i] = b[i] + s * c[i], by several threads, each over arrays of its own.
//
//   stream THREADS MIB SECONDS   prints the bytes a second that all threads together read and wrote
//
// Arrays are touched first by the thread that uses them, so that they lie in the memory of its node. A write to memory
// that is not in a cache reads it first; as in STREAM, that read is not counted.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static size_t items;
static double seconds;
static pthread_barrier_t together;

struct work {
  pthread_t thread;
  double bytes_per_s;
  int failed;
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void* run(void* argument) {
  struct work* const work = argument;
  double* const a = malloc(items * sizeof *a);
  double* const b = malloc(items * sizeof *b);
  double* const c = malloc(items * sizeof *c);
  work->failed = a == NULL || b == NULL || c == NULL;
  for (size_t i = 0; !work->failed && i < items; ++i) {
    a[i] = 0.0;
    b[i] = 1.0;
    c[i] = 2.0;
  }
  pthread_barrier_wait(&together);
  const double begin = now();
  double end = begin;
  size_t passes = 0;
  for (; !work->failed && end - begin < seconds; ++passes, end = now()) {
    for (size_t i = 0; i < items; ++i) a[i] = b[i] + 3.0 * c[i];
    atomic_signal_fence(memory_order_seq_cst);  // the compiler may not join passes
  }
  if (passes > 0) {
    if (a[items / 2] != 7.0) work->failed = 1;
    work->bytes_per_s = 3.0 * sizeof *a * (double)items * (double)passes / (end - begin);
  }
  free(a);
  free(b);
  free(c);
  return NULL;
}

int main(int count, char** arguments) {
  if (count != 4) return 2;
  const int threads = atoi(arguments[1]);
  items = (size_t)atol(arguments[2]) * 1048576 / 3 / sizeof(double);
  seconds = atof(arguments[3]);
  struct work* const works = calloc((size_t)threads, sizeof *works);
  if (threads < 1 || items < 1 || works == NULL) return 2;
  pthread_barrier_init(&together, NULL, (unsigned)threads);
  for (int i = 0; i < threads; ++i) {
    if (pthread_create(&works[i].thread, NULL, run, &works[i]) != 0) return 1;
  }
  double total = 0.0;
  int failed = 0;
  for (int i = 0; i < threads; ++i) {
    pthread_join(works[i].thread, NULL);
    total += works[i].bytes_per_s;
    failed |= works[i].failed;
  }
  free(works);
  if (failed) return 1;
  printf("%.6g\n", total);
  return 0;
}
