/* One rank of a job, in a process of its own, with a stand-in for NCCL 2.28 (tuner v5, profiler v5). Ranks are in step through memory that they share,
 * as kernels are through NVLink or RDMA, whatever happens to the network between the plugins.
 *
 *   rank LIBRARY SHARED RANK RANKS PAUSE_US
 *
 * Asks about one AllReduce every PAUSE_US, takes the cheapest entry of the cost table and writes it to SHARED, until SHARED's end_call. Then ends the
 * communicator, and keeps a second one until quit is set.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);
struct tuner {
  const char *name;
  int (*init)(void **, uint64_t, size_t, size_t, logger, const int *, void *);
  int (*choose)(void *, int, size_t, int, float **, int, int, int, int *);
  int (*finalize)(void *);
};
struct profiler {
  const char *name;
  int (*init)(void **, uint64_t, int *, const char *, int, int, int, logger);
  int (*start)(void *, void **, const void *);
  int (*stop)(void *);
  int (*record)(void *, int, const void *);
  int (*finalize)(void *);
};
struct head { uint64_t kind; void *parent; int rank; };
struct group { struct head head; unsigned char captured; int depth; };
struct api { struct head head; const char *func; size_t count; const char *datatype; int root; void *stream; unsigned char captured; };
struct kernel_launch { struct head head; void *stream; };
enum { GROUP_API = 0x100, COLL_API = 0x200, KERNEL_LAUNCH = 0x800, ALL_REDUCE = 4, BYTES = 1 << 20, RANKS_MAX = 16, CALLS_MAX = 1 << 18 };
enum { TREE_LL, TREE_LL128, RING_SIMPLE = 5, ENTRIES = 21 };

/* tests/cuts.rs has the same layout. */
struct shared {
  uint64_t end_call, quit;
  struct { uint64_t begun, longest_us, ended; } ranks[RANKS_MAX];
  uint8_t arms[RANKS_MAX][CALLS_MAX];
};

/* How many calls a rank may be ahead of another. */
enum { AHEAD = 64 };

static void say(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list all;
  (void)flags, (void)file, (void)line;
  va_start(all, format);
  if (level <= 3) vfprintf(stderr, format, all), fputc('\n', stderr);
  va_end(all);
}
static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
static uint64_t get(uint64_t *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
static void set(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_SEQ_CST); }

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
  struct tuner *tuner = dlsym(library, "ncclTunerPlugin_v5");
  struct profiler *profiler = dlsym(library, "ncclProfiler_v5");
  int file = open(argv[2], O_RDWR), rank = atoi(argv[3]), ranks = atoi(argv[4]), pause_us = atoi(argv[5]);
  if (!tuner || !profiler || file < 0 || rank < 0 || rank >= ranks || ranks > RANKS_MAX) return 4;
  struct shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shared == MAP_FAILED) return 5;

  /* Communicator 77 is the job's; 1000 + RANK is with ranks that never come. */
  uint64_t ids[2] = {77, 1000 + (uint64_t)rank};
  void *of_tuner[2], *of_profiler[2];
  int mask = 0, bad = 0, channels = 0;
  for (int c = 0; c < 2; c++) {
    bad |= profiler->init(&of_profiler[c], ids[c], &mask, "rank", ranks, ranks, rank, say);
    bad |= tuner->init(&of_tuner[c], ids[c], (size_t)ranks, (size_t)ranks, say, NULL, NULL);
  }
  if (bad) return 6;
  for (uint64_t call = 0; call < get(&shared->end_call) && call < CALLS_MAX; call++) {
    for (int r = 0; r < ranks; r++)
      while (get(&shared->ranks[r].begun) + AHEAD < call) usleep(200);
    void *in_group = NULL, *none = NULL, *launch = NULL;
    struct group g = {{GROUP_API, NULL, rank}, 0, 1};
    bad |= profiler->start(of_profiler[0], &in_group, &g);
    struct api a = {{COLL_API, in_group, rank}, "AllReduce", BYTES / 4, "ncclFloat32", 0, NULL, 0};
    bad |= profiler->start(of_profiler[0], &none, &a);
    float table[ENTRIES];
    int best = RING_SIMPLE;
    for (int i = 0; i < ENTRIES; i++) table[i] = -1;
    table[RING_SIMPLE] = 50, table[TREE_LL128] = 60, table[TREE_LL] = 70;
    set(&shared->ranks[rank].begun, call + 1);
    uint64_t asked = now_us();
    bad |= tuner->choose(of_tuner[0], ALL_REDUCE, BYTES, 1, (float **)table, 7, 3, 0, &channels);
    uint64_t took = now_us() - asked;
    if (took > get(&shared->ranks[rank].longest_us)) set(&shared->ranks[rank].longest_us, took);
    for (int i = 0; i < ENTRIES; i++)
      if (table[i] >= 0 && table[i] < table[best]) best = i;
    shared->arms[rank][call] = (uint8_t)(best + 1);
    struct kernel_launch launched = {{KERNEL_LAUNCH, in_group, rank}, NULL};
    bad |= profiler->start(of_profiler[0], &launch, &launched);
    bad |= profiler->stop(in_group);
    usleep((unsigned)pause_us);
  }
  for (int c = 0; c < 2; c++) {
    bad |= tuner->finalize(of_tuner[c]) | profiler->finalize(of_profiler[c]);
    set(&shared->ranks[rank].ended, 1);
    while (c == 0 && !get(&shared->quit)) usleep(1000);
  }
  return bad ? 7 : 0;
}
