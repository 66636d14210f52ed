/* One rank of a job, in a process of its own, with a stand-in for NCCL 2.28 (tuner v5, profiler v5).
 *
 *   rank LIBRARY SHARED RANK RANKS PAUSE_US
 *
 * Asks about one AllReduce every PAUSE_US until SHARED's end_call. Then ends the communicator, and keeps a second one until quit is set.
 */
#include "standin.h"

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
  struct tuner *tuner = dlsym(library, "ncclTunerPlugin_v5");
  struct profiler *profiler = dlsym(library, "ncclProfiler_v5");
  struct shared *shared = map(argv[2]);
  int rank = atoi(argv[3]), ranks = atoi(argv[4]), pause_us = atoi(argv[5]);
  if (!tuner || !profiler || !shared || rank < 0 || rank >= ranks || ranks > RANKS_MAX) return 4;

  /* Communicator 77 is the job's; 1000 + RANK is with ranks that never come. */
  uint64_t ids[2] = {77, 1000 + (uint64_t)rank};
  void *of_tuner[2], *of_profiler[2];
  int mask = 0, bad = 0;
  for (int c = 0; c < 2; c++) {
    bad |= profiler->init(&of_profiler[c], ids[c], &mask, "rank", ranks, ranks, rank, say);
    bad |= tuner->init(&of_tuner[c], ids[c], (size_t)ranks, (size_t)ranks, say, NULL, NULL);
  }
  if (bad) return 6;
  for (uint64_t call = 0; call < get(&shared->end_call) && call < CALLS_MAX; call++) {
    for (int r = 0; r < ranks; r++) keep_step(shared, r, call);
    void *in_group = NULL, *none = NULL, *launch = NULL;
    struct group g = {{GROUP_API, NULL, rank}, 0, 1};
    bad |= profiler->start(of_profiler[0], &in_group, &g);
    struct api a = {{COLL_API, in_group, rank}, "AllReduce", BYTES / 4, "ncclFloat32", 0, NULL, 0};
    bad |= profiler->start(of_profiler[0], &none, &a);
    bad |= ask(shared, rank, call, tuner->choose, of_tuner[0]);
    set(&shared->ranks[rank].mask, (uint64_t)__atomic_load_n(&mask, __ATOMIC_SEQ_CST));
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
