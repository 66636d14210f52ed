/* A site's profiler of interface v4 or v5 (-DAPI=N), for tests: it requests the events of LINKWISE_TEST_SITE_MASK and writes one line per event to
   LINKWISE_TEST_SITE_LOG.PID: the event's kind and its parents' kinds. Its handles are pointers, and a handle that is not its own ends the process.
   Written from the published layout. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef void (*logger_t)(int, unsigned long, const char *, int, const char *, ...);
typedef struct { uint64_t magic; unsigned kind; } event_t;
enum { COLL = 0x2, P2P = 0x4 };
static const uint64_t MAGIC = 0x5173e51735173e51;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;

static void say(const char *what, unsigned kind, unsigned a, unsigned b) {
  pthread_mutex_lock(&lock);
  if (!out) {
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", getenv("LINKWISE_TEST_SITE_LOG"), (int)getpid());
    out = fopen(path, "a");
  }
  fprintf(out, "%s %x %x %x\n", what, kind, a, b);
  fflush(out);
  pthread_mutex_unlock(&lock);
}

static unsigned kind_of(void *handle) {
  event_t *e = handle;
  if (!e) return 0;
  if (e->magic != MAGIC) abort();
  return e->kind;
}

static int begin(void **context, int *mask) {
  if (getenv("LINKWISE_TEST_SITE_INIT_ERROR")) return atoi(getenv("LINKWISE_TEST_SITE_INIT_ERROR"));
  *mask = (int)strtol(getenv("LINKWISE_TEST_SITE_MASK"), NULL, 0); /* as NVIDIA's examples: it replaces the mask */
  *context = malloc(1);
  return 0;
}

typedef struct {
#if API == 4
  uint8_t kind;
#else
  uint64_t kind;
#endif
  void *parent;
  int rank;
  union { void *words[16]; } of; /* from offset 24 on */
} described_t;

static int start(void *context, void **handle, described_t *d) {
  if (!context) abort();
  event_t *e = malloc(sizeof *e);
  e->magic = MAGIC, e->kind = (unsigned)d->kind;
  unsigned group = 0;
#if API >= 5
  if (d->kind == COLL) group = kind_of(d->of.words[10]);
  if (d->kind == P2P) group = kind_of(d->of.words[5]);
#endif
  say("start", e->kind, kind_of(d->parent), group);
  *handle = e;
  return 0;
}

static int stop(void *handle) {
  say("stop", kind_of(handle), 0, 0);
  return 0;
}

static int record(void *handle, int state, void *arguments) {
  (void)arguments;
  say("state", kind_of(handle), (unsigned)state, 0);
  return 0;
}

static int finalize(void *context) {
  free(context);
  return 0;
}

#if API == 4
static int init(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank, logger_t logger) {
#else
static int init(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, logger_t logger) {
#endif
  (void)id, (void)name, (void)nodes, (void)ranks, (void)rank, (void)logger;
  return begin(context, mask);
}

#define JOIN(a, b) a##b
#define NAME(v) JOIN(ncclProfiler_v, v)
const struct { const char *name; void *init, *start, *stop, *record, *finalize; } NAME(API) = {"site", init, start, stop, record, finalize};
