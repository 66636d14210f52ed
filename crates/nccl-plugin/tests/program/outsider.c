/* A job of two processes, and a process outside of it with which process 0 makes a communicator later, as a trainer does with an inference server.
 * Stand-in for NCCL 2.24: tuner v4, which does not identify communicators, and no profiler.
 *
 *   outsider LIBRARY SHARED PROCESS 3 PAUSE_US
 *
 * Processes 0 and 1 make the job's calls (rows 0 and 1 of SHARED) until end_call. Then process 0 (row 3) and process 2 (row 2) make calls of theirs.
 */
#include "standin.h"

enum { THEIR_CALLS = 3000 };

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
  struct tuner_v4 *tuner = dlsym(library, "ncclTunerPlugin_v4");
  struct shared *shared = map(argv[2]);
  int process = atoi(argv[3]), pause_us = atoi(argv[5]), bad = 0;
  if (!tuner || !shared) return 4;
  void *of_job = NULL, *of_both = NULL;
  if (process < 2) {
    bad |= tuner->init(2, 2, say, &of_job);
    for (uint64_t call = 0; call < get(&shared->end_call); call++) {
      keep_step(shared, 1 - process, call);
      bad |= ask(shared, process, call, tuner->choose, of_job);
      usleep((unsigned)pause_us);
    }
    set(&shared->ranks[process].ended, 1);
  }
  while (!get(&shared->ranks[0].ended)) usleep(1000);
  if (process != 1) {
    int row = process == 0 ? 3 : 2;
    bad |= tuner->init(2, 2, say, &of_both);
    for (uint64_t call = 0; call < THEIR_CALLS; call++) {
      keep_step(shared, 5 - row, call);
      bad |= ask(shared, row, call, tuner->choose, of_both);
    }
    bad |= tuner->finalize(of_both);
  }
  while (!get(&shared->quit)) usleep(1000);
  if (of_job) bad |= tuner->finalize(of_job);
  return bad ? 7 : 0;
}
