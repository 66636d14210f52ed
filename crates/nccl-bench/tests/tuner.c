// SPDX-License-Identifier: Apache-2.0
// A tuner plugin for tests (v4 and v5 of NCCL's published interface): prefers ALGORITHM and PROTOCOL on CHANNELS channels
// (given as -D), wherever NCCL offers them.
#include <stddef.h>
#include <stdint.h>

typedef int result;
static result choose(void *context, int collective, size_t bytes, int pipelined, float **costs, int algorithms, int protocols, int registered, int *channels) {
  (void)context; (void)collective; (void)bytes; (void)pipelined; (void)registered;
  float *cost = (float *)costs + ALGORITHM * protocols + PROTOCOL; // one block, whatever the type says
  if (ALGORITHM < algorithms && PROTOCOL < protocols && *cost >= 0) {
    *cost = 0;
    *channels = CHANNELS;
  }
  return 0;
}
static result finish(void *context) { (void)context; return 0; }
static result init4(size_t ranks, size_t nodes, void *logger, void **context) {
  (void)ranks; (void)nodes; (void)logger;
  *context = NULL;
  return 0;
}
static result init5(void **context, uint64_t comm, size_t ranks, size_t nodes, void *logger, void *domains, void *constants) {
  (void)comm; (void)ranks; (void)nodes; (void)logger; (void)domains; (void)constants;
  *context = NULL;
  return 0;
}
struct tuner { const char *name; void *init, *choose, *finish; };
const struct tuner ncclTunerPlugin_v4 = {"linkwise-test", (void *)init4, (void *)choose, (void *)finish};
const struct tuner ncclTunerPlugin_v5 = {"linkwise-test", (void *)init5, (void *)choose, (void *)finish};
