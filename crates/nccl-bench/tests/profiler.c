// SPDX-License-Identifier: Apache-2.0
// A profiler plugin (interface v5) that asks for the start and end of every channel of every kernel, and writes how many it saw, and for how many the
// start's time was missing or in the future, to the file LINKWISE_TEST_PROFILE.RANK.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { COLL = 2, KERNEL_CHANNEL = 0x40 };
struct event { uint64_t kind; void *parent; int rank; struct { uint8_t channel; uint64_t timer_ns; } kernel; }; // the part of an event of a kernel
static unsigned long started, ended, wrong;
static int own_rank;
static int init(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, void *logger) {
  (void)id; (void)name; (void)nodes; (void)ranks; (void)logger;
  *context = &started;
  *mask = COLL | KERNEL_CHANNEL;
  own_rank = rank;
  return 0;
}
static int start(void *context, void **handle, struct event *e) {
  (void)context;
  *handle = NULL;
  if (e->kind != KERNEL_CHANNEL) return 0;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
  __atomic_add_fetch(&started, 1, __ATOMIC_RELAXED);
  if (e->kernel.timer_ns == 0 || e->kernel.timer_ns > now || now - e->kernel.timer_ns > 60000000000ull) __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
  *handle = &ended;
  return 0;
}
static int stop(void *handle) {
  if (handle) __atomic_add_fetch(&ended, 1, __ATOMIC_RELAXED);
  return 0;
}
static int state(void *handle, int s, void *arguments) { (void)handle; (void)s; (void)arguments; return 0; }
static int finalize(void *context) {
  (void)context;
  char path[4096];
  snprintf(path, sizeof path, "%s.%d", getenv("LINKWISE_TEST_PROFILE"), own_rank);
  FILE *f = fopen(path, "w");
  if (!f) return 2;
  fprintf(f, "%lu %lu %lu\n", started, ended, wrong);
  return fclose(f) ? 2 : 0;
}
struct profiler {
  const char *name;
  int (*init)(void **, uint64_t, int *, const char *, int, int, int, void *);
  int (*start)(void *, void **, struct event *);
  int (*stop)(void *);
  int (*state)(void *, int, void *);
  int (*finalize)(void *);
};
__attribute__((visibility("default"))) struct profiler ncclProfiler_v5 = {"test", init, start, stop, state, finalize};
