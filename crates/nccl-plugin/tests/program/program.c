/* A training program together with a stand-in for NCCL: two ranks of one communicator in this process. They ask the plugin as NCCL 2.28 does
 * (tuner v5, profiler v5), use the cheapest entry of the cost table, and sleep for the arm's time. The arm with the shortest kernel has the
 * longest step:
 *
 *   arm           step   kernel on the rank that arrives last (the other rank's waits 500 us more)
 *   RING/SIMPLE   4 ms   100 us     cheapest in the table: AUTO
 *   TREE/LL128    1 ms    80 us
 *   TREE/LL       8 ms    20 us
 *
 *   program LIBRARY steps|groups|calls STEPS [CALLS LAG]
 *
 * A step has CALLS calls of one size (1), each with its part of the step's time on the GPU. At the end of a step the program waits until the GPU has
 * finished the step LAG steps before (0: its own).
 * steps: reports steps through linkwise.h; groups: NCCL reports groups instead; calls: neither. Prints the arm of the last call.
 */
#include "linkwise.h"
#include "nccl.h"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 2 };

static void quiet(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)format;
}
static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}
static void wait_until(double us) {
  struct timespec t = {(time_t)(us / 1e6), (long)((us - 1e6 * (double)(long)(us / 1e6)) * 1e3)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}
enum { LAG_MAX = 8 };
static double step_us(int arm) { return arm == TREE_LL ? 8000 : arm == TREE_LL128 ? 1000 : 4000; }
static uint64_t kernel_ns(int arm) { return arm == TREE_LL ? 20000 : arm == TREE_LL128 ? 80000 : 100000; }
static const char *algorithm(int arm) { return arm == RING_SIMPLE ? "RING" : "TREE"; }
static const char *protocol(int arm) { return arm == RING_SIMPLE ? "SIMPLE" : arm == TREE_LL ? "LL" : "LL128"; }

int main(int argc, char **argv) {
  if (argc != 4 && argc != 6) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
  struct tuner *tuner = dlsym(library, "ncclTunerPlugin_v5");
  struct profiler *profiler = dlsym(library, "ncclProfiler_v5");
  int (*begin)(void) = (int (*)(void))dlsym(library, "linkwise_step_begin");
  int (*end)(void) = (int (*)(void))dlsym(library, "linkwise_step_end");
  /* The compiler checks the header's declarations against these types. */
  int (*declared[])(void) = {linkwise_step_begin, linkwise_step_end};
  if (!tuner || !profiler || begin != declared[0] || end != declared[1]) return 4;
  int steps = !strcmp(argv[2], "steps"), groups = steps || !strcmp(argv[2], "groups");

  void *of_tuner[RANKS], *of_profiler[RANKS];
  int mask = 0, bad = 0, arm = RING_SIMPLE;
  for (int r = 0; r < RANKS; r++) {
    bad |= profiler->init(&of_profiler[r], 77, &mask, "program", 1, RANKS, r, quiet);
    bad |= tuner->init(&of_tuner[r], 77, RANKS, 1, quiet, NULL, NULL);
  }
  if (bad || (mask & (GROUP_API | COLL_API | COLL)) != (GROUP_API | COLL_API | COLL)) return 5;
  bad |= end(); /* an end without a begin is ignored */
  int calls = argc == 6 ? atoi(argv[4]) : 1, lag = argc == 6 ? atoi(argv[5]) : 0;
  if (calls < 1 || lag < 0 || lag >= LAG_MAX) return 2;
  double gpu_us = now_us(), done_us[LAG_MAX] = {0};
  for (int call = 0, of = calls * atoi(argv[3]); call < of; call++) {
    int step = call / calls, is_first = call % calls == 0, is_last = call % calls == calls - 1;
    if (steps && is_first) bad |= begin();
    void *in_group = NULL;
    struct group g = {{GROUP_API, NULL, 0}, 0, 1};
    if (groups) bad |= profiler->start(of_profiler[0], &in_group, &g);
    for (int r = 0; r < RANKS; r++) {
      void *none = NULL;
      struct api a = {{COLL_API, in_group, r}, "AllReduce", BYTES / 4, "ncclFloat32", 0, NULL, 0};
      if (groups) bad |= profiler->start(of_profiler[r], &none, &a);
    }
    for (int r = 0; r < RANKS; r++) {
      int best;
      bad |= ask_tuner(tuner->choose, of_tuner[r], &best);
      if (r > 0 && best != arm) return 6; /* two ranks with different arms: a job would hang */
      arm = best;
    }
    for (int r = 0; r < RANKS; r++) {
      void *run = NULL, *channel = NULL, *launch = NULL;
      struct kernel_launch launched = {{KERNEL_LAUNCH, in_group, r}, NULL};
      if (groups) bad |= profiler->start(of_profiler[r], &launch, &launched);
      struct collective c = {{COLL, NULL, r}, (uint64_t)call, "AllReduce", NULL, NULL, BYTES / 4, 0, "ncclFloat32", 1, 16,
                             algorithm(arm), protocol(arm), NULL};
      bad |= profiler->start(of_profiler[r], &run, &c);
      struct kernel k = {{KERNEL, run, r}, 0, 1000000};
      uint64_t stopped = 1000000 + kernel_ns(arm) + (r == 0 ? 500000 : 0); /* rank 0 arrives early and waits */
      if (mask & KERNEL) bad |= profiler->start(of_profiler[r], &channel, &k);
      if (mask & KERNEL) bad |= profiler->record(channel, CHANNEL_STOPPED, &stopped);
      bad |= profiler->stop(run);
    }
    if (groups) bad |= profiler->stop(in_group);
    double at = now_us();
    gpu_us = (gpu_us > at ? gpu_us : at) + step_us(arm) / calls;
    done_us[step % LAG_MAX] = gpu_us;
    if (is_last && step >= lag) wait_until(done_us[(step - lag) % LAG_MAX]);
    if (steps && is_last) bad |= end();
  }
  for (int r = 0; r < RANKS; r++) bad |= tuner->finalize(of_tuner[r]) | profiler->finalize(of_profiler[r]);
  printf("%s/%s\n", algorithm(arm), protocol(arm));
  return bad ? 7 : 0;
}
