// SPDX-License-Identifier: Apache-2.0
// Links between the GPUs of a host, for copies by the CUDA runtime (copy engines). LINKWISE_EMU_LINK_MBIT="0>1:2000,1>0:2000" gives the rate of every
// directed link in Mbit/s, by the numbers of the GPUs on the host. All processes of the host share the clock of a link, which carries one copy after
// the other. A copy begins when the link is free, the earlier work of its stream has ended, and the copy was submitted; it ends after bytes / rate.
// These are times of the model: that a thread wakes late costs the link nothing. Without the variable copies take no time; with it, a copy between
// two GPUs that no link joins is an error. Copies inside a GPU, and between GPU and host, take no time. Memory that is shared by a file descriptor
// (cuMemImportFromShareableHandle) counts as memory of the GPU that imports it.
#include "emu.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double bytes_per_s[GPUS_MAX * GPUS_MAX]; // link FROM * GPUS_MAX + TO; 0: none
static int shaped;
static atomic_ullong own[GPUS_MAX * GPUS_MAX], *free_at_ns = own;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_links(void) {
  const char *s = getenv("LINKWISE_EMU_LINK_MBIT"), *host = getenv("NCCL_HOSTID");
  int from, to, used;
  double mbit;
  for (; s && sscanf(s, "%d>%d:%lf%n", &from, &to, &mbit, &used) == 3; s += *s == ',') {
    if (from >= 0 && from < GPUS_MAX && to >= 0 && to < GPUS_MAX && mbit > 0) bytes_per_s[from * GPUS_MAX + to] = mbit * 1e6 / 8, shaped = 1;
    s += used;
  }
  if (!shaped) return;
  uint64_t hash = 1469598103934665603ull; // as in device_uuid()
  for (; host && *host; host++) hash = (hash ^ (unsigned char)*host) * 1099511628211ull;
  char name[32];
  snprintf(name, sizeof name, "links-%016llx", (unsigned long long)hash);
  char *shared = shared_file(name, sizeof own);
  if (shared) free_at_ns = (void *)shared;
}

int lane_of(const void *to, const void *from) {
  pthread_once(&once, read_links);
  if (!shaped) return LANE_FREE;
  int a = memory_gpu(from), b = memory_gpu(to);
  if (a < 0 || b < 0 || a == b) return LANE_FREE;
  return bytes_per_s[a * GPUS_MAX + b] > 0 ? a * GPUS_MAX + b : LANE_ABSENT;
}

double lane_reserve(int lane, size_t bytes, double ready_s) {
  unsigned long long ready = (unsigned long long)(ready_s * 1e9), takes = (unsigned long long)((double)bytes / bytes_per_s[lane] * 1e9), old, begin;
  old = atomic_load(&free_at_ns[lane]);
  do begin = old > ready ? old : ready;
  while (!atomic_compare_exchange_weak(&free_at_ns[lane], &old, begin + takes));
  return (double)(begin + takes) * 1e-9;
}

void lane_wait(double end_s) {
  struct timespec t = {(time_t)end_s, (long)((end_s - (double)(time_t)end_s) * 1e9)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
  watch_moved();
}
