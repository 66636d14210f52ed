/* One rank of a job under a real launcher, with a stand-in for NCCL 2.28 (tuner v5, profiler v5): it loads the plugin that the environment names, as
 * NCCL does, and asks about AllReduce until FOLDER/stop is there or CALLS are asked. No GPU, no NCCL, no bytes.
 *
 *   job HOSTS CALLS PAUSE_US
 *
 * The last line is `rank R of N: last arm A`, A the cheapest entry of the cost table after the last answer.
 */
#include "nccl.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The launcher's number of this rank, or of all of them. */
static int launched(const char *const *names) {
  for (; *names; names++)
    if (getenv(*names)) return atoi(getenv(*names));
  return -1;
}

int main(int argc, char **argv) {
  const char *ranks_of[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", NULL};
  const char *rank_of[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID", NULL};
  int rank = launched(rank_of), ranks = launched(ranks_of);
  if (argc != 4 || rank < 0 || rank >= ranks) return 2;
  const char *path = getenv("NCCL_TUNER_PLUGIN");
  void *library = path ? dlopen(path, RTLD_NOW) : NULL;
  if (!library) return fprintf(stderr, "rank %d: no plugin: %s\n", rank, path ? dlerror() : "NCCL_TUNER_PLUGIN is not set"), 3;
  struct tuner *tuner = dlsym(library, "ncclTunerPlugin_v5");
  struct profiler *profiler = dlsym(library, "ncclProfiler_v5");
  if (!tuner || !profiler) return 4;
  void *of_tuner, *of_profiler;
  int mask = 0, best = 0, hosts = atoi(argv[1]);
  int bad = profiler->init(&of_profiler, 77, &mask, "job", hosts, ranks, rank, say);
  bad |= tuner->init(&of_tuner, 77, (size_t)ranks, (size_t)hosts, say, NULL, NULL);
  for (int call = 0; !bad && call < atoi(argv[2]); call++) {
    void *in_group = NULL, *none = NULL, *launch = NULL;
    struct group g = {{GROUP_API, NULL, rank}, 0, 1};
    bad |= profiler->start(of_profiler, &in_group, &g);
    struct api a = {{COLL_API, in_group, rank}, "AllReduce", BYTES / 4, "ncclFloat32", 0, NULL, 0};
    bad |= profiler->start(of_profiler, &none, &a);
    bad |= ask_tuner(tuner->choose, of_tuner, &best);
    struct kernel_launch l = {{KERNEL_LAUNCH, in_group, rank}, NULL};
    bad |= profiler->start(of_profiler, &launch, &l);
    bad |= profiler->stop(in_group);
    usleep((unsigned)atoi(argv[3]));
  }
  bad |= tuner->finalize(of_tuner) | profiler->finalize(of_profiler);
  printf("rank %d of %d: last arm %d\n", rank, ranks, best);
  return bad ? 7 : 0;
}
