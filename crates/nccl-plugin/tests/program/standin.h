/* Memory in which the ranks of a job are in step, as kernels are through NVLink or RDMA, whatever happens to the network between the plugins. */
#include "nccl.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 16, CALLS_MAX = 1 << 18 };

/* tests/common/job.rs has the same layout. */
struct shared {
  uint64_t end_call, quit;
  struct { uint64_t begun, longest_us, ended, mask; } ranks[RANKS_MAX];
  uint8_t arms[RANKS_MAX][CALLS_MAX];
};

/* How many calls a rank may be ahead of another. */
enum { AHEAD = 64 };

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
static uint64_t get(uint64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
static void set(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }

/* One question about an AllReduce: the cheapest entry of the cost table, written as the rank's next call. */
static int ask(struct shared *shared, int rank, uint64_t call, int (*choose)(void *, int, size_t, int, float **, int, int, int, int *), void *context) {
  int best;
  set(&shared->ranks[rank].begun, call + 1);
  uint64_t asked = now_us();
  int bad = ask_tuner(choose, context, &best);
  uint64_t took = now_us() - asked;
  if (took > get(&shared->ranks[rank].longest_us)) set(&shared->ranks[rank].longest_us, took);
  shared->arms[rank][call] = (uint8_t)(best + 1);
  return bad;
}
static void keep_step(struct shared *shared, int rank, uint64_t call) {
  while (get(&shared->ranks[rank].begun) + AHEAD < call) usleep(200);
}
static struct shared *map(const char *path) {
  int file = open(path, O_RDWR);
  void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? NULL : at;
}
