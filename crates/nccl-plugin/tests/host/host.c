/* Loads the plugin without NCCL and drives every interface through function pointers of NCCL's prototypes, under AddressSanitizer and
 * UndefinedBehaviorSanitizer if the compiler has them. Layouts are those of NCCL's published plugin interfaces.
 *
 *   host LIBRARY SCENARIO        exit status 0: success; 1: a line on standard error names the failure
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef void (*logger_t)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);
typedef struct { int domains, ranks_min, ranks_max; } nvl_t;

/* Tuner: name, init, choose, finish (and, last in v6, chunk size). */
typedef int (*finish_t)(void *context);
typedef struct {
  const char *name;
  int (*init)(size_t ranks, size_t nodes, logger_t, void **context);
  int (*choose)(void *context, int collective, size_t bytes, int collnet, int nvls, int pipelined, int *algorithm, int *protocol, int *channels);
  finish_t finish;
} tuner_v2;
typedef struct {
  const char *name;
  int (*init)(size_t ranks, size_t nodes, logger_t, void **context);
  int (*choose)(void *context, int collective, size_t bytes, int pipelined, float **table, int algorithms, int protocols, int *channels);
  finish_t finish;
} tuner_v3;
typedef int (*choose_v4_t)(void *context, int collective, size_t bytes, int pipelined, float **table, int algorithms, int protocols,
                           int registered, int *channels);
typedef struct {
  const char *name;
  int (*init)(size_t ranks, size_t nodes, logger_t, void **context);
  choose_v4_t choose;
  finish_t finish;
} tuner_v4;
typedef struct {
  const char *name;
  int (*init)(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t, const nvl_t *, double *constants);
  choose_v4_t choose;
  finish_t finish;
  int (*chunk)(void *context, int collective, size_t bytes, int algorithm, int protocol, int channels, size_t *chunk); /* v6 */
} tuner_v6;

/* Profiler. */
typedef struct {
  uint64_t sequence;
  const char *collective;
  const void *send;
  void *receive;
  size_t count;
  int root;
  const char *datatype;
  uint8_t channels, warps;
  const char *algorithm, *protocol;
} coll_t;
typedef struct { const char *collective; size_t count; const char *datatype; int root; void *stream; bool captured; } coll_api_t;
typedef struct { uint8_t channel; uint64_t timer_ns; } kernel_channel_t;
typedef union { coll_t coll; coll_api_t coll_api; kernel_channel_t kernel_channel; char room[256]; } event_t;
typedef struct { uint8_t type; void *parent; int rank; event_t of; } event_v4;
typedef struct { uint64_t type; void *parent; int rank; event_t of; } event_v5;
typedef struct {
  const char *name;
  int (*init)(void **context, int *mask, const char *comm, uint64_t id, int nodes, int ranks, int rank, logger_t);
  int (*start)(void *context, void **handle, event_v4 *);
  int (*stop)(void *handle);
  int (*record)(void *handle, int state, uint64_t *arguments);
  int (*finalize)(void *context);
} profiler_v4;
typedef struct {
  const char *name;
  int (*init)(void **context, uint64_t id, int *mask, const char *comm, int nodes, int ranks, int rank, logger_t);
  int (*start)(void *context, void **handle, event_v5 *);
  int (*stop)(void *handle);
  int (*record)(void *handle, int state, uint64_t *arguments);
  int (*finalize)(void *context);
} profiler_v5;

#define CHECK(what)                                                        \
  do {                                                                     \
    if (!(what)) {                                                         \
      fprintf(stderr, "host.c:%d: not so: %s\n", __LINE__, #what);         \
      exit(1);                                                             \
    }                                                                      \
  } while (0)

static _Atomic int warnings;
static void logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  (void)subsystems, (void)file, (void)line;
  if (level == 2) atomic_fetch_add(&warnings, 1);
  fprintf(stderr, "%s\n", text);
}

static void *library;
static const char *path;
static void *symbol(const char *format, int version) {
  char name[64];
  snprintf(name, sizeof name, format, version);
  return dlsym(library, name);
}

enum { ROWS = 7, COLUMNS = 3, CELLS = 64 };

/* Fills a table: costs of an H100, no possible entry, a demoted ring, or invalid numbers. */
static void fill(float *table, int cells, int kind, unsigned *random) {
  static const float ordinary[6] = {60, 55, 70, 80, 65, 75};
  for (int i = 0; i < cells; i++) table[i] = -1;
  if (kind == 1) return;
  for (int i = 0; i < cells && i < 6; i++) table[i] = ordinary[i];
  if (kind == 2)
    for (int i = 3; i < 6 && i < cells; i++) table[i] = i == 4 ? -1024 : table[i] * 1024;
  if (kind == 3) {
    static const float odd[8] = {NAN, INFINITY, -INFINITY, 0, -0.0f, 3.6e9f, 1.7e38f, -1024};
    for (int i = 0; i < cells; i++) table[i] = odd[rand_r(random) % 8];
  }
}

/* One communicator through one version. */
typedef struct { int version; void *table; void *context; } tuner_t;

static tuner_t tuner_init(int version, uint64_t id, size_t ranks) {
  tuner_t t = {version, symbol("ncclTunerPlugin_v%d", version), (void *)8};
  CHECK(t.table != NULL);
  nvl_t domains = {1, (int)ranks, (int)ranks};
  double constants[159];
  for (int i = 0; i < 159; i++) constants[i] = i;
  switch (version) {
    case 2: CHECK(((tuner_v2 *)t.table)->init(ranks, 1, logger, &t.context) == 0); break;
    case 3: CHECK(((tuner_v3 *)t.table)->init(ranks, 1, logger, &t.context) == 0); break;
    case 4: CHECK(((tuner_v4 *)t.table)->init(ranks, 1, logger, &t.context) == 0); break;
    default: CHECK(((tuner_v6 *)t.table)->init(&t.context, id, ranks, 1, logger, &domains, constants) == 0);
  }
  for (int i = 0; i < 159; i++) CHECK(constants[i] == i);
  CHECK(t.context != (void *)8); /* init sets the context or NULL */
  return t;
}

static int tuner_ask(tuner_t t, int collective, size_t bytes, int pipelined, float *table, int rows, int columns, int *channels, int *chosen) {
  int algorithm = -1, protocol = -1, status;
  float **cast = (float **)(void *)table;
  switch (t.version) {
    case 2:
      status = ((tuner_v2 *)t.table)->choose(t.context, collective, bytes, 0, 1, pipelined, &algorithm, &protocol, channels);
      break;
    case 3: status = ((tuner_v3 *)t.table)->choose(t.context, collective, bytes, pipelined, cast, rows, columns, channels); break;
    case 4: status = ((tuner_v4 *)t.table)->choose(t.context, collective, bytes, pipelined, cast, rows, columns, 0, channels); break;
    default: status = ((tuner_v6 *)t.table)->choose(t.context, collective, bytes, pipelined, cast, rows, columns, 1, channels);
  }
  *chosen = algorithm < 0 && protocol < 0 ? -1 : 3 * algorithm + protocol; /* v2 only */
  return status;
}

static void tuner_finish(tuner_t t) {
  finish_t finish = t.version == 2   ? ((tuner_v2 *)t.table)->finish
                    : t.version == 3 ? ((tuner_v3 *)t.table)->finish
                    : t.version == 4 ? ((tuner_v4 *)t.table)->finish
                                     : ((tuner_v6 *)t.table)->finish;
  CHECK(finish(t.context) == 0);
}

/* Asks about many calls. The ranks have agreed on no arms, so no table may change and no channel count may be set. */
static void ask_everything(tuner_t t, int rounds) {
  static const int shapes[4][2] = {{7, 3}, {6, 3}, {7, 4}, {9, 5}};
  unsigned random = 1;
  for (int i = 0; i < rounds; i++) {
    for (int kind = 0; kind < 4; kind++) {
      const int *shape = shapes[i % 4];
      int cells = shape[0] * shape[1], channels = 0, chosen = -1;
      float *table = malloc(sizeof(float) * (size_t)cells), before[CELLS]; /* on the heap, so that the sanitizer sees accesses behind its end */
      fill(table, cells, kind, &random);
      memcpy(before, table, sizeof(float) * (size_t)cells);
      int collective = i % 7 - 1; /* -1 and 5 are not collectives */
      CHECK(tuner_ask(t, collective, (size_t)1 << (i % 40), i % 3, table, shape[0], shape[1], &channels, &chosen) == 0);
      CHECK(memcmp(before, table, sizeof(float) * (size_t)cells) == 0);
      CHECK(channels == 0 && chosen == -1);
      free(table);
    }
  }
}

/* Arguments that NCCL never passes, but that a plugin must survive. */
static void ask_nonsense(tuner_t t) {
  float table[ROWS * COLUMNS];
  unsigned random = 1;
  int channels = 0, chosen;
  fill(table, ROWS * COLUMNS, 0, &random);
  CHECK(tuner_ask(t, 4, 1024, 1, NULL, 7, 3, &channels, &chosen) == 0);
  CHECK(tuner_ask(t, 4, 1024, 1, table, 0, 3, &channels, &chosen) == 0);
  CHECK(tuner_ask(t, 4, 1024, 1, table, -1, -1, &channels, &chosen) == 0);
  CHECK(tuner_ask(t, 4, 1024, 1, table, 1 << 30, 1 << 30, &channels, &chosen) == 0);
  CHECK(tuner_ask(t, 1 << 30, SIZE_MAX, 1, table, 7, 3, &channels, &chosen) == 0);
  CHECK(tuner_ask(t, 4, 0, 1, table, 7, 3, NULL, &chosen) == 0 && channels == 0);
  tuner_t none = t;
  none.context = NULL;
  CHECK(tuner_ask(none, 4, 1024, 1, table, 7, 3, &channels, &chosen) == 0);
  tuner_finish(none);
}

typedef struct { int version; void *table; void *context; int mask; } profiler_t;

static profiler_t profiler_init(int version, uint64_t id, int rank) {
  profiler_t p = {version, symbol("ncclProfiler_v%d", version), (void *)8, 0};
  CHECK(p.table != NULL);
  if (version == 4)
    CHECK(((profiler_v4 *)p.table)->init(&p.context, &p.mask, "comm", id, 1, 8, rank, logger) == 0);
  else
    CHECK(((profiler_v5 *)p.table)->init(&p.context, id, &p.mask, "comm", 1, 8, rank, logger) == 0);
  CHECK(p.context != (void *)8);
  return p;
}

/* Starts one event and returns its handle. */
static void *event(profiler_t p, uint64_t type, void *parent, const event_t *of) {
  void *const untouched = (void *)UINTPTR_MAX; /* handles are numbers from 1 on */
  void *handle = untouched;
  if (p.version == 4) {
    event_v4 e = {.type = (uint8_t)type, .parent = parent, .rank = 0, .of = *of};
    CHECK(((profiler_v4 *)p.table)->start(p.context, &handle, &e) == 0);
  } else {
    event_v5 e = {.type = type, .parent = parent, .rank = 0, .of = *of};
    CHECK(((profiler_v5 *)p.table)->start(p.context, &handle, &e) == 0);
  }
  CHECK(handle != untouched);
  return handle;
}

static void stop(profiler_t p, void *handle) {
  CHECK((p.version == 4 ? ((profiler_v4 *)p.table)->stop : ((profiler_v5 *)p.table)->stop)(handle) == 0);
}

static void record(profiler_t p, void *handle, int state, uint64_t *arguments) {
  CHECK((p.version == 4 ? ((profiler_v4 *)p.table)->record : ((profiler_v5 *)p.table)->record)(handle, state, arguments) == 0);
}

static void profiler_finalize(profiler_t p) {
  CHECK((p.version == 4 ? ((profiler_v4 *)p.table)->finalize : ((profiler_v5 *)p.table)->finalize)(p.context) == 0);
}

/* A collective as NCCL reports it: the call, the enqueued collective, two channels that start and stop; also with missing or odd texts. */
static void tell(profiler_t p, int i) {
  static const char *const names[] = {"AllReduce", "Broadcast", "AlltoAll", "", NULL};
  static const char *const algorithms[] = {"RING", "TREE", "NVLS_TREE", "none such", NULL};
  event_t e;
  if (p.version > 4) {
    memset(&e, 0, sizeof e);
    e.coll_api = (coll_api_t){names[i % 5], 1024, "ncclFloat32", 0, NULL, i % 2};
    stop(p, event(p, 0x200, NULL, &e));
    memset(&e, 0, sizeof e);
    stop(p, event(p, 0x100, NULL, &e));
    stop(p, event(p, 0x800, NULL, &e));
  }
  memset(&e, 0, sizeof e);
  e.coll = (coll_t){(uint64_t)i, names[i % 5], NULL, NULL, (size_t)1 << (i % 40), 0, i % 5 == 4 ? NULL : "ncclBfloat16", 2, 16, algorithms[i % 5],
                    i % 5 == 4 ? NULL : "LL128"};
  void *coll = event(p, 0x2, NULL, &e);
  void *channels[2];
  for (int c = 0; c < 2; c++) {
    memset(&e, 0, sizeof e);
    e.kernel_channel = (kernel_channel_t){(uint8_t)c, 1000u * (uint64_t)i};
    channels[c] = event(p, 0x40, coll, &e);
  }
  stop(p, coll);
  for (int c = 0; c < 2; c++) {
    uint64_t end = 1000u * (uint64_t)i + 500;
    record(p, channels[c], 22, &end);
    record(p, channels[c], 22, NULL);
    record(p, channels[c], 99, &end);
    stop(p, channels[c]);
  }
  uint64_t never = UINT64_MAX;
  record(p, (void *)(uintptr_t)0xdeadbeef, 22, &never); /* a handle is a number of the plugin, not an address */
  stop(p, NULL);
}

static int count(const char *folder) {
  DIR *d = opendir(folder);
  CHECK(d != NULL);
  int n = 0;
  for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}
static int threads(void) { return count("/proc/self/task"); }
static int files(void) { return count("/proc/self/fd"); }

static void pause_ms(int ms) {
  struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000 * 1000};
  nanosleep(&t, NULL);
}

/* A joined thread may still be listed for a moment, and a new thread may not have begun. */
static bool comes_to(int (*what)(void), int n) {
  for (int i = 0; what() != n; i++) {
    if (i == 500) return false;
    pause_ms(10);
  }
  return true;
}

/* Every version in turn, profiler first as in NCCL. */
static void every_version(void) {
  for (int version = 2; version <= 6; version++) {
    for (int profiler = 4; profiler <= 7; profiler++) {
      uint64_t id = 100u * (uint64_t)version + (uint64_t)profiler;
      profiler_t p = profiler_init(profiler, id, 0);
      tuner_t t = tuner_init(version, id, 8);
      ask_nonsense(t);
      for (int i = 0; i < 300; i++) tell(p, i);
      ask_everything(t, 300);
      tuner_finish(t);
      profiler_finalize(p);
    }
    tuner_t single = tuner_init(version, 1, 1); /* a communicator of one rank */
    ask_everything(single, 3);
    tuner_finish(single);
  }
}

static void twice_and_nothing_left(void) {
  int threads_before = threads(), files_before = files();
  for (int i = 0; i < 3; i++) {
    tuner_t a = tuner_init(6, 1, 8), b = tuner_init(5, 2, 4);
    ask_everything(a, 20);
    if (getenv("LINKWISE_MODE")) CHECK(comes_to(threads, threads_before + 2)); /* the worker, and the thread of files and the log */
    pause_ms(50); /* time to open files and sockets */
    tuner_finish(a);
    tuner_finish(a); /* a second finalize */
    tuner_finish(b);
    tuner_finish(b);
    CHECK(comes_to(threads, threads_before));
    CHECK(comes_to(files, files_before));
  }
}

/* With wrong settings every interface does nothing. */
static void off(void) {
  int threads_before = threads(), files_before = files();
  for (int version = 2; version <= 6; version++) {
    profiler_t p = profiler_init(2 + version > 7 ? 7 : 2 + version, 1, 0);
    tuner_t t = tuner_init(version, 1, 8);
    CHECK(t.context == NULL && p.context == NULL && p.mask == 0);
    ask_everything(t, 50);
    CHECK(comes_to(threads, threads_before) && comes_to(files, files_before));
    tuner_finish(t);
    profiler_finalize(p);
  }
}

enum { THREADS = 16, EACH = 32 };
static tuner_t many[THREADS][EACH];
static void *one_thread(void *number) {
  int n = (int)(intptr_t)number;
  profiler_t p = profiler_init(7, (uint64_t)n, 0);
  for (int i = 0; i < EACH; i++) many[n][i] = tuner_init(2 + (n + i) % 5, (uint64_t)(n * EACH + i), 8);
  for (int round = 0; round < 20; round++)
    for (int i = 0; i < EACH; i++) ask_everything(many[n][i], 4), tell(p, round);
  for (int i = n % 2; i < EACH; i += 2) tuner_finish(many[n][i]);
  for (int i = 1 - n % 2; i < EACH; i += 2) tuner_finish(many[n][i]);
  profiler_finalize(p);
  return NULL;
}
static void many_threads(void) {
  int threads_before = threads(), files_before = files();
  pthread_t all[THREADS];
  for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&all[i], NULL, one_thread, (void *)(intptr_t)i) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
  CHECK(comes_to(threads, threads_before));
  CHECK(comes_to(files, files_before));
}

/* Runs `what` in a child process, which must exit with success. */
static void child(void (*what)(tuner_t), tuner_t t) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    alarm(20); /* ends a child that hangs */
    what(t);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
static void uses_nothing(tuner_t t) { (void)t; }
static void leaves_by_exit(tuner_t t) { (void)t, exit(0); }
static void makes_its_own(tuner_t t) {
  (void)t;
  tuner_t own = tuner_init(6, 77, 4);
  CHECK(own.context == NULL); /* off in a child */
  ask_everything(own, 10);
  tuner_finish(own);
}
static void ends_what_is_not_its(tuner_t t) { ask_everything(t, 4), tuner_finish(t); }
static void forks(void) {
  int threads_before = threads(), files_before = files();
  tuner_t t = tuner_init(6, 1, 8);
  ask_everything(t, 50);
  child(uses_nothing, t);
  child(leaves_by_exit, t);
  child(makes_its_own, t);
  child(ends_what_is_not_its, t);
  ask_everything(t, 50);
  tuner_t later = tuner_init(5, 2, 8);
  tuner_finish(later);
  tuner_finish(t);
  CHECK(comes_to(threads, threads_before));
  CHECK(comes_to(files, files_before));
}

static void without_finalize(void) {
  tuner_t t = tuner_init(6, 1, 8);
  ask_everything(t, 50);
  exit(0); /* with the plugin's thread running */
}

static void closed_without_finalize(void) {
  tuner_t t = tuner_init(6, 1, 8);
  ask_everything(t, 50);
  CHECK(dlclose(library) == 0);
  CHECK(dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL); /* the library stays loaded while its thread lives */
  pause_ms(100); /* the thread polls every 5 ms and would crash if its code were unmapped */
}

/* Writes past 16 KiB fail, as on a full disk. The failure also raises a signal, which would end the process if the plugin's thread received it. */
static void full_disk(void) {
  struct rlimit limit = {16384, 16384};
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  tuner_t t = tuner_init(6, 1, 8);
  for (int i = 0; i < 20; i++) {
    ask_everything(t, 200);
    pause_ms(10);
  }
  tuner_finish(t);
}

/* The plugin's thread receives no signal of the job. */
static int blocked_threads(void) {
  DIR *d = opendir("/proc/self/task");
  CHECK(d != NULL);
  int found = 0;
  for (struct dirent *e; (e = readdir(d));) {
    char path[300], line[256];
    bool ours = false;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
    FILE *f = fopen(path, "r");
    if (!f) continue;
    while (fgets(line, sizeof line, f)) {
      if (strcmp(line, "Name:\tlinkwise\n") == 0) ours = true;
      unsigned long long blocked;
      if (ours && sscanf(line, "SigBlk: %llx", &blocked) == 1) {
        found++;
        /* all signals except those that cannot be blocked (9, 19) and two of the C library (32, 33) */
        CHECK((blocked | 0x180040100ull) == ~0ull);
      }
    }
    fclose(f);
  }
  closedir(d);
  return found;
}
static void no_signals(void) {
  tuner_t t = tuner_init(6, 1, 8);
  CHECK(comes_to(blocked_threads, 1)); /* after the thread has set its name */
  sigset_t mine;
  CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mine) == 0 && !sigismember(&mine, SIGTERM));
  tuner_finish(t);
}

/* A table is in force: "AllReduce TREE/SIMPLE@4, AllGather RING/LL, Broadcast AUTO@8" (set by the caller, with test option `alone`: no other rank needs to agree). */
static void in_force(void) {
  enum { AHEAD = 16 }; /* calls before the first change: an epoch applies only to calls that have not begun */
  for (int version = 2; version <= 6; version++) {
    tuner_t t = tuner_init(version, 500 + (uint64_t)version, 8);
    CHECK(t.context != NULL);
    pause_ms(1000); /* time for proposal, acknowledgement and verdict before the first call */
    float table[ROWS * COLUMNS], before[ROWS * COLUMNS];
    unsigned random = 1;
    int chosen, changed_at = -1;
    for (int call = 0; call < 40; call++) {
      /* These do not count as calls: a question about another kernel, and one without a possible entry. */
      for (int i = 0; i < 5; i++) {
        int channels = 0;
        fill(table, ROWS * COLUMNS, 0, &random);
        memcpy(before, table, sizeof table);
        CHECK(tuner_ask(t, 4, 1 << 20, 0, table, ROWS, COLUMNS, &channels, &chosen) == 0);
        CHECK(memcmp(before, table, sizeof table) == 0 && channels == 0 && chosen == -1);
        if (version > 2) {
          fill(table, ROWS * COLUMNS, 1, &random);
          memcpy(before, table, sizeof table);
          CHECK(tuner_ask(t, 4, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &chosen) == 0);
          CHECK(memcmp(before, table, sizeof table) == 0 && channels == 0);
        }
      }
      int channels = 0;
      fill(table, ROWS * COLUMNS, 0, &random);
      memcpy(before, table, sizeof table);
      CHECK(tuner_ask(t, 4, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &chosen) == 0);
      if (version == 2) { /* NCCL 2.21 asks twice per call and must get the same answer */
        int again;
        CHECK(tuner_ask(t, 4, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &again) == 0 && again == chosen);
      }
      bool changed = version == 2 ? chosen != -1 : memcmp(before, table, sizeof table) != 0;
      if (!changed) CHECK(channels == 0);
      if (changed && changed_at < 0) changed_at = call;
      if (changed && version == 2) CHECK(chosen == 2 && channels == 0); /* TREE, SIMPLE; this version has no channel count */
      if (changed && version > 2) {
        CHECK(channels == 4);
        for (int i = 0; i < ROWS * COLUMNS; i++) {
          if (i != 2) CHECK(memcmp(&before[i], &table[i], sizeof *table) == 0 && (table[i] < 0 || table[2] < table[i]));
        }
        CHECK(table[2] > 0);
      }
    }
    if (changed_at != AHEAD) fprintf(stderr, "v%d: call %d\n", version, changed_at);
    CHECK(changed_at == AHEAD);
    if (version > 2) {
      /* The arm is not possible: neither the table nor the channel count changes. */
      int channels = 0;
      fill(table, ROWS * COLUMNS, 0, &random);
      table[2] = -1;
      memcpy(before, table, sizeof table);
      CHECK(tuner_ask(t, 4, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &chosen) == 0);
      CHECK(memcmp(before, table, sizeof table) == 0 && channels == 0);
      /* A ring that NCCL demotes (FP8) stays demoted. */
      fill(table, ROWS * COLUMNS, 2, &random);
      memcpy(before, table, sizeof table);
      CHECK(tuner_ask(t, 2, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &chosen) == 0);
      CHECK(memcmp(before, table, sizeof table) == 0 && channels == 0);
      /* A collective without a rule in the table. */
      fill(table, ROWS * COLUMNS, 0, &random);
      CHECK(tuner_ask(t, 1, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &chosen) == 0);
      CHECK(memcmp(before, table, sizeof(float) * 2) == 0 && channels == 0);
      /* NCCL does not clamp CollNet's channel count, so the plugin does not set it. */
      fill(table, ROWS * COLUMNS, 1, &random);
      table[8] = 40, table[5] = 50;
      CHECK(tuner_ask(t, 0, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &chosen) == 0 && channels == 0);
      table[5] = 30; /* AUTO is a ring: AUTO@8 requests 8 channels */
      CHECK(tuner_ask(t, 0, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &chosen) == 0 && channels == 8);
    }
    tuner_finish(t);
  }
}

/* A table is in force, but the user has set NCCL_ALGO. From v3 on NCCL's cost table shows the remaining options; v2 has no cost table. */
static void forced(void) {
  tuner_t t = tuner_init(2, 700, 8);
  CHECK(t.context != NULL);
  pause_ms(1000); /* as in `in_force`, with the same table */
  float table[ROWS * COLUMNS];
  for (int call = 0; call < 80; call++) {
    int channels = 0, chosen;
    CHECK(tuner_ask(t, 4, 1 << 20, 1, table, ROWS, COLUMNS, &channels, &chosen) == 0);
    CHECK(chosen == -1 && channels == 0);
  }
  tuner_finish(t);
}

static const struct { const char *name; void (*run)(void); } scenarios[] = {
  {"every-version", every_version}, {"twice", twice_and_nothing_left}, {"threads", many_threads},
  {"fork", forks},                  {"exit", without_finalize},        {"close", closed_without_finalize},
  {"full-disk", full_disk},         {"signals", no_signals},
  {"in-force", in_force},         {"forced", forced},                {"off", off},
};

int main(int n, char **arguments) {
  if (n != 3) return fprintf(stderr, "usage: host LIBRARY SCENARIO\n"), 2;
  path = arguments[1];
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
    if (strcmp(arguments[2], scenarios[i].name) == 0) {
      scenarios[i].run();
      const char *most = getenv("WARNINGS_MAX");
      const char *least = getenv("WARNINGS_MIN");
      CHECK(!most || atomic_load(&warnings) <= atoi(most));
      CHECK(!least || atomic_load(&warnings) >= atoi(least));
      return 0;
    }
  }
  return fprintf(stderr, "no scenario %s\n", arguments[2]), 2;
}
