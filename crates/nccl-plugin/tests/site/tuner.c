/* A site's tuner of interface v2 to v6 (-DAPI=N), for tests. It prefers TREE/SIMPLE for AllReduce as NVIDIA's examples do: cost 0, and asks for
   LINKWISE_TEST_SITE_CHANNELS channels if that is set. LINKWISE_TEST_SITE_INIT_ERROR and LINKWISE_TEST_SITE_ASK_ERROR make it fail. Written from the published layout. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*logger_t)(int, unsigned long, const char *, int, const char *, ...);
enum { ALL_REDUCE = 4, TREE = 0, SIMPLE = 2 };

static int number(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

static int begin(void **context, size_t ranks) {
  if (number("LINKWISE_TEST_SITE_INIT_ERROR")) return number("LINKWISE_TEST_SITE_INIT_ERROR");
  size_t *own = malloc(sizeof *own);
  *own = ranks;
  *context = own;
  return 0;
}

static int finish(void *context) {
  free(context);
  return 0;
}

#if API == 2
static int choose(void *context, int collective, size_t bytes, int collnet, int nvls, int ops, int *algorithm, int *protocol, int *channels) {
  (void)bytes, (void)collnet, (void)nvls, (void)ops;
  if (!context) abort();
  if (number("LINKWISE_TEST_SITE_ASK_ERROR")) return number("LINKWISE_TEST_SITE_ASK_ERROR");
  if (collective == ALL_REDUCE) *algorithm = TREE, *protocol = SIMPLE;
  if (number("LINKWISE_TEST_SITE_CHANNELS")) *channels = number("LINKWISE_TEST_SITE_CHANNELS");
  return 0;
}
#else
static int prefer(void *context, int collective, float **table, int protocols, int *channels) {
  if (!context) abort();
  if (number("LINKWISE_TEST_SITE_ASK_ERROR")) return number("LINKWISE_TEST_SITE_ASK_ERROR");
  float *costs = (float *)table;
  if (collective == ALL_REDUCE && costs[TREE * protocols + SIMPLE] >= 0) {
    costs[TREE * protocols + SIMPLE] = 0;
    if (number("LINKWISE_TEST_SITE_CHANNELS")) *channels = number("LINKWISE_TEST_SITE_CHANNELS");
  }
  return 0;
}
#if API == 3
static int choose(void *context, int collective, size_t bytes, int ops, float **table, int algorithms, int protocols, int *channels) {
#else
static int choose(void *context, int collective, size_t bytes, int ops, float **table, int algorithms, int protocols, int registered, int *channels) {
  (void)registered;
#endif
  (void)bytes, (void)ops, (void)algorithms;
  return prefer(context, collective, table, protocols, channels);
}
#endif

#if API <= 4
static int init(size_t ranks, size_t nodes, logger_t logger, void **context) {
  (void)nodes, (void)logger;
  return begin(context, ranks);
}
#else
static int init(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t logger, void *domains, void *constants) {
  (void)id, (void)nodes, (void)logger, (void)domains, (void)constants;
  return begin(context, ranks);
}
#endif

#if API == 6
static int chunk_size(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels, size_t *size) {
  (void)collective, (void)bytes, (void)algorithm, (void)protocol, (void)channels;
  if (!context) abort();
  *size = 4096;
  return 0;
}
#endif

#define JOIN(a, b) a##b
#define NAME(v) JOIN(ncclTunerPlugin_v, v)
const struct { const char *name; void *init, *choose, *finish
#if API == 6
  , *chunk_size
#endif
  ; } NAME(API) = {"site", init, choose, finish
#if API == 6
  , chunk_size
#endif
};
