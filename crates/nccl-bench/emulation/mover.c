// SPDX-License-Identifier: Apache-2.0
// One rank of a job whose bytes move. It loads libnccl.so.2, makes the calls of a plan file and compares every byte that arrives with what the
// senders must have sent. One line per call:
//
//   NAME BYTES TYPE OPERATION ROOT REPETITIONS STEP_CALLS FLAGS MATRIX
//
//   NAME        all_reduce all_gather reduce_scatter broadcast reduce sendrecv
//   BYTES       as NCCL counts them; sendrecv: unused
//   STEP_CALLS  0: one call per repetition; n: every repetition is a training step of n such calls, which is reported to linkwise's tuner
//   FLAGS       g: captured into a CUDA graph, launched REPETITIONS times; i: in place; u: user buffers registered with the communicator;
//               o: input of any rounding, output to a file beside the plan instead of a check;  -: none
//   MATRIX      sendrecv: file with bytes from rank (row) to rank (column), separated by spaces; otherwise -
//
//   mover LIBNCCL PARENT_PID RANK RANKS DEVICE MEETING_FILE PLAN_FILE
//
// It answers with lines "@linkwise bytes {json}". NCCL's log goes to the same output.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { RANKS_MAX = 256, EXIT_USAGE = 64, EXIT_NCCL = 65, EXIT_NOT_EMULATED = 66, EXIT_NO_EMULATION = 67, GUARD = 512, CALLS_MAX = 4096 };
enum type { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, TYPES };
static const char *const type_names[TYPES] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16"};
static const size_t type_bytes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
enum operation { SUM, PRODUCT, MAX, MIN, AVERAGE, OPERATIONS };
static const char *const operation_names[OPERATIONS] = {"sum", "prod", "max", "min", "avg"};
enum name { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SENDRECV, NAMES };
static const char *const call_names[NAMES] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "sendrecv"};

typedef struct { char bytes[128]; } unique_id;
// Ranks meet in a mapped file: they may live in different network namespaces, but share a file system.
static struct meeting { unique_id id; int ready, arrived, generation; } *meeting;
static int rank, ranks;
static void *nccl, *comm, *stream;
enum { IN_PROGRESS = 7, WATCH_US = 100000 }; // ncclInProgress; interval of the watchdog
static int is_over;

static void *must(const char *name) {
  void *f = dlsym(nccl, name);
  if (!f) {
    printf("@linkwise error the library has no %s\n", name);
    exit(EXIT_NCCL);
  }
  return f;
}
static void *(*cuda_symbol)(const char *);
#define CUDA(name, ...) (((int (*)())cuda_symbol(#name))(__VA_ARGS__))
#define NCCL(name, ...) check(((int (*)())must(#name))(__VA_ARGS__), #name)
static int check(int result, const char *what) {
  const char *(*last)(void *) = (const char *(*)(void *))dlsym(nccl, "ncclGetLastError");
  if (result) printf("@linkwise error %s failed with %d: %s\n", what, result, last ? last(NULL) : "");
  return result;
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static double time_of_day(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void meet(void) { // the bench kills this process at its deadline, or when another rank ends
  int generation = __atomic_load_n(&meeting->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&meeting->arrived, 1, __ATOMIC_ACQ_REL) == ranks) {
    meeting->arrived = 0;
    __atomic_store_n(&meeting->generation, generation + 1, __ATOMIC_RELEASE);
  }
  while (__atomic_load_n(&meeting->generation, __ATOMIC_ACQUIRE) == generation) usleep(100);
}

// ---- patterns
static uint64_t mix(uint64_t key, uint64_t i) { // splitmix64
  uint64_t z = key * 0x9E3779B97F4A7C15ull + i * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
static void pattern(unsigned char *to, size_t bytes, uint64_t key) {
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t w = mix(key, i);
    memcpy(to + i, &w, bytes - i < 8 ? bytes - i : 8);
  }
}
static uint64_t key_of(int from, int to, int call, int repetition) { return 1 + (uint64_t)from + 1000 * (uint64_t)to + 1000000 * (uint64_t)call + 100000000000ull * (uint64_t)repetition; }

// Whole numbers so small that every order of a reduction gives the same result, to the bit.
static uint64_t range_of(enum type t, enum operation o) {
  if (o == PRODUCT) return 2;
  uint64_t exact = t == BF16 ? 256 : t == F16 ? 2048 : 1 << 20;
  return o == SUM || o == AVERAGE ? (exact / (uint64_t)ranks > 1 ? exact / (uint64_t)ranks : 2) : t == I8 || t == U8 ? 127 : t == BF16 ? 256 : 1021;
}
static int64_t number(enum type t, enum operation o, int of_rank, uint64_t key, size_t i) {
  uint64_t v = mix(key + (uint64_t)of_rank, i) % range_of(t, o);
  if (o == PRODUCT) return (int64_t)v + 1;
  int64_t most = t == I8 || t == U8 ? 127 / ((int64_t)ranks * ranks) + 1 : 64; // the sum before the division must fit
  return o == AVERAGE ? (int64_t)v % most * ranks : (int64_t)v;
}
static uint16_t narrow(double v, int fraction_bits, int bias) { // of a whole number that fits
  if (v == 0) return 0;
  int exponent = 0;
  while (v >= 2) v /= 2, exponent++;
  while (v < 1) v *= 2, exponent--;
  return (uint16_t)((uint32_t)(exponent + bias) << fraction_bits | (uint32_t)((v - 1) * (double)(1 << fraction_bits)));
}
static void encode(enum type t, int64_t v, void *to) {
  union { float f; double d; uint16_t h; int64_t i; } u = {.i = v};
  if (t == F32) u.f = (float)v;
  if (t == F64) u.d = (double)v;
  if (t == F16) u.h = narrow((double)v, 10, 15);
  if (t == BF16) u.h = narrow((double)v, 7, 127);
  memcpy(to, &u, type_bytes[t]);
}
// Any bits of a moderate exponent: every order of additions rounds differently.
static void rough(enum type t, uint64_t key, size_t i, void *to) {
  uint64_t w = mix(key, i);
  uint32_t exponent = (uint32_t)(w >> 32) % 12, f = (uint32_t)w;
  union { uint32_t f; uint64_t d; uint16_t h; } u;
  if (t == F32) u.f = (f & 0x807fffffu) | (exponent + 121) << 23;
  else if (t == F64) u.d = (w & 0x800fffffffffffffull) | (uint64_t)(exponent + 1017) << 52;
  else if (t == F16) u.h = (uint16_t)((f & 0x83ffu) | (exponent + 9) << 10);
  else if (t == BF16) u.h = (uint16_t)((f & 0x807fu) | (exponent + 121) << 7);
  else u.d = w;
  memcpy(to, &u, type_bytes[t]);
}

// ---- calls
struct call { enum name name; size_t bytes; enum type type; enum operation operation; int root, repetitions, step_calls, graph, in_place, registered, order; char matrix[512]; };
struct buffers { unsigned char *from, *to; size_t from_bytes, to_bytes, sent[RANKS_MAX], received[RANKS_MAX], at_from[RANKS_MAX], at_to[RANKS_MAX]; };

static int read_call(const char *line, struct call *c) {
  char name[32], type[16], operation[16], flags[16];
  *c = (struct call){.name = NAMES, .type = TYPES, .operation = OPERATIONS};
  if (sscanf(line, "%31s %zu %15s %15s %d %d %d %15s %511s", name, &c->bytes, type, operation, &c->root, &c->repetitions, &c->step_calls, flags, c->matrix) != 9) return 1;
  for (int i = 0; i < NAMES; i++) if (!strcmp(name, call_names[i])) c->name = (enum name)i;
  for (int i = 0; i < TYPES; i++) if (!strcmp(type, type_names[i])) c->type = (enum type)i;
  for (int i = 0; i < OPERATIONS; i++) if (!strcmp(operation, operation_names[i])) c->operation = (enum operation)i;
  c->graph = strchr(flags, 'g') != NULL;
  c->in_place = strchr(flags, 'i') != NULL;
  c->registered = strchr(flags, 'u') != NULL;
  c->order = strchr(flags, 'o') != NULL;
  return c->name == NAMES || c->type == TYPES || c->operation == OPERATIONS || c->root < 0 || c->root >= ranks || c->repetitions < 1 || c->step_calls < 0;
}
static int read_matrix(const char *path, struct buffers *b) {
  FILE *f = fopen(path, "r");
  int bad = !f;
  for (int i = 0; i < ranks && !bad; i++)
    for (int k = 0; k < ranks && !bad; k++) {
      size_t bytes = 0;
      bad = fscanf(f, "%zu", &bytes) != 1;
      if (i == rank) b->sent[k] = bytes;
      if (k == rank) b->received[i] = bytes;
    }
  if (f) fclose(f);
  for (int k = 0; k < ranks; k++) {
    b->at_from[k] = b->from_bytes, b->from_bytes += (b->sent[k] + GUARD - 1) / GUARD * GUARD;
    b->at_to[k] = b->to_bytes, b->to_bytes += (b->received[k] + GUARD - 1) / GUARD * GUARD;
  }
  return bad;
}
static size_t elements_of(const struct call *c) { // per rank, as the call counts them
  size_t shares = c->name == ALL_GATHER || c->name == REDUCE_SCATTER ? (size_t)ranks : 1, n = c->bytes / type_bytes[c->type] / shares;
  return n ? n : 1;
}
static int allocate(const struct call *c, struct buffers *b) {
  *b = (struct buffers){0};
  size_t share = elements_of(c) * type_bytes[c->type];
  if (c->name == SENDRECV && read_matrix(c->matrix, b)) {
    printf("@linkwise error the matrix %s cannot be read\n", c->matrix);
    return 1;
  }
  if (c->name != SENDRECV) {
    b->from_bytes = c->name == REDUCE_SCATTER ? share * (size_t)ranks : share;
    b->to_bytes = c->name == ALL_GATHER ? share * (size_t)ranks : share;
  }
  // A guard behind the output shows writes beyond its end. Registered buffers come from NCCL: only such memory can be mapped by peers.
  if (c->registered) return NCCL(ncclMemAlloc, (void **)&b->from, b->from_bytes + GUARD) || NCCL(ncclMemAlloc, (void **)&b->to, b->to_bytes + GUARD);
  return CUDA(cudaMalloc, (void **)&b->from, b->from_bytes + GUARD) || CUDA(cudaMalloc, (void **)&b->to, b->to_bytes + GUARD);
}
static size_t own_share(const struct call *c) { return (size_t)rank * elements_of(c) * type_bytes[c->type]; }
static unsigned char *input(const struct call *c, const struct buffers *b) {
  if (!c->in_place || c->name == SENDRECV || c->name == REDUCE_SCATTER) return b->from;
  return c->name == ALL_GATHER ? b->to + own_share(c) : b->to;
}
static unsigned char *output(const struct call *c, const struct buffers *b) { return c->in_place && c->name == REDUCE_SCATTER ? b->from + own_share(c) : b->to; }

static void fill(const struct call *c, const struct buffers *b, int call, int repetition) {
  memset(b->to, 0xee, b->to_bytes + GUARD);
  if (c->name == SENDRECV) {
    for (int k = 0; k < ranks; k++) pattern(b->from + b->at_from[k], b->sent[k], key_of(rank, k, call, repetition));
    return;
  }
  unsigned char *in = input(c, b);
  if (c->name == ALL_GATHER || c->name == BROADCAST) pattern(in, b->from_bytes, key_of(rank, 0, call, repetition));
  else
    for (size_t i = 0, n = b->from_bytes / type_bytes[c->type]; i < n; i++) {
      if (c->order) rough(c->type, key_of(rank, 0, call, repetition), i, in + i * type_bytes[c->type]);
      else encode(c->type, number(c->type, c->operation, rank, key_of(0, 0, call, repetition), i), in + i * type_bytes[c->type]);
    }
}
static int enqueue(const struct call *c, const struct buffers *b) {
  size_t n = elements_of(c);
  void *in = input(c, b), *out = output(c, b);
  switch (c->name) {
  case ALL_REDUCE: return NCCL(ncclAllReduce, in, out, n, (int)c->type, (int)c->operation, comm, stream);
  case REDUCE_SCATTER: return NCCL(ncclReduceScatter, in, out, n, (int)c->type, (int)c->operation, comm, stream);
  case ALL_GATHER: return NCCL(ncclAllGather, in, out, n, (int)c->type, comm, stream);
  case BROADCAST: return NCCL(ncclBroadcast, in, out, n, (int)c->type, c->root, comm, stream);
  case REDUCE: return NCCL(ncclReduce, in, out, n, (int)c->type, (int)c->operation, c->root, comm, stream);
  default: break;
  }
  if (NCCL(ncclGroupStart)) return 1;
  for (int k = 0; k < ranks; k++) {
    int to = (rank + k) % ranks, from = (rank + ranks - k) % ranks;
    if (b->sent[to] && NCCL(ncclSend, b->from + b->at_from[to], b->sent[to], (int)U8, to, comm, stream)) return 1;
    if (b->received[from] && NCCL(ncclRecv, b->to + b->at_to[from], b->received[from], (int)U8, from, comm, stream)) return 1;
  }
  return NCCL(ncclGroupEnd);
}

// ---- checks
struct wrong { size_t bytes, first; };
static void compare(struct wrong *w, const unsigned char *base, size_t at, size_t bytes, const void *expected) {
  if (!memcmp(base + at, expected, bytes)) return;
  for (size_t i = 0; i < bytes; i++)
    if (base[at + i] != ((const unsigned char *)expected)[i] && w->bytes++ == 0) w->first = at + i;
}
static void compare_pattern(struct wrong *w, const unsigned char *base, size_t at, size_t bytes, uint64_t key) {
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t expected = mix(key, i);
    compare(w, base, at + i, bytes - i < 8 ? bytes - i : 8, &expected);
  }
}
static int64_t reduced(const struct call *c, uint64_t key, size_t i) {
  int64_t v = number(c->type, c->operation, 0, key, i);
  for (int r = 1; r < ranks; r++) {
    int64_t x = number(c->type, c->operation, r, key, i);
    v = c->operation == PRODUCT ? v * x : c->operation == MAX ? (x > v ? x : v) : c->operation == MIN ? (x < v ? x : v) : v + x;
  }
  return c->operation == AVERAGE ? v / ranks : v;
}
static struct wrong verify(const struct call *c, const struct buffers *b, int call, int repetition) {
  struct wrong w = {0, 0};
  const unsigned char *out = output(c, b);
  unsigned char guard[GUARD];
  memset(guard, 0xee, GUARD);
  compare(&w, b->to, b->to_bytes, GUARD, guard);
  if (c->name == SENDRECV) {
    for (int k = 0; k < ranks; k++) compare_pattern(&w, out, b->at_to[k], b->received[k], key_of(k, rank, call, repetition));
    return w;
  }
  size_t element = type_bytes[c->type], n = elements_of(c), share = n * element;
  if (c->name == ALL_GATHER) {
    for (int k = 0; k < ranks; k++) compare_pattern(&w, out, (size_t)k * share, share, key_of(k, 0, call, repetition));
  } else if (c->name == BROADCAST) {
    compare_pattern(&w, out, 0, share, key_of(c->root, 0, call, repetition));
  } else if (c->name != REDUCE || rank == c->root) {
    for (size_t i = 0; i < n; i++) {
      unsigned char expected[8];
      encode(c->type, reduced(c, key_of(0, 0, call, repetition), c->name == REDUCE_SCATTER ? (size_t)rank * n + i : i), expected);
      compare(&w, out, i * element, element, expected);
    }
  }
  return w;
}
static int keep(const struct call *c, const struct buffers *b, int call, const char *plan) {
  char path[4096];
  snprintf(path, sizeof path, "%s.out.%d.%d", plan, call, rank);
  FILE *f = fopen(path, "wb");
  size_t bytes = elements_of(c) * type_bytes[c->type];
  int bad = !f || fwrite(output(c, b), bytes, 1, f) != 1;
  if (f) bad |= fclose(f) != 0;
  return bad;
}
static void answer(const struct call *c, const struct buffers *b, int call, int repetition, struct wrong w, double seconds, double ended) {
  int (*writer)(const void *, int *, int *, uint64_t *) = (int (*)(const void *, int *, int *, uint64_t *))dlsym(RTLD_DEFAULT, "linkwise_emu_writer");
  printf("@linkwise bytes {\"call\":%d,\"repetition\":%d,\"rank\":%d,\"bytes\":%zu,\"wrong_bytes\":%zu,\"seconds\":%.6f,\"ended\":%.6f", call, repetition, rank, b->to_bytes, w.bytes, seconds, ended);
  if (w.bytes) {
    int channel, peer;
    uint64_t step;
    printf(",\"first_wrong\":{\"offset\":%zu", w.first);
    if (writer && writer(output(c, b) + w.first, &channel, &peer, &step)) printf(",\"channel\":%d,\"peer\":%d,\"step\":%llu", channel, peer, (unsigned long long)step);
    printf("}");
  }
  printf("}\n");
}

// NCCL opens linkwise's tuner without making its symbols global, so the library is opened again under the same name.
static void report_step(const char *name) {
  static void *tuner;
  const char *path = getenv("NCCL_TUNER_PLUGIN");
  if (!tuner && path) tuner = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  int (*f)(void) = tuner ? (int (*)(void))dlsym(tuner, name) : NULL;
  if (f) f();
}

static int run_call(const struct call *c, int call, const char *plan) {
  struct buffers b;
  void *handles[2] = {NULL, NULL}, *graph = NULL, *executable = NULL;
  if (allocate(c, &b)) return 1;
  if (c->registered && (NCCL(ncclCommRegister, comm, b.from, b.from_bytes + GUARD, &handles[0]) || NCCL(ncclCommRegister, comm, b.to, b.to_bytes + GUARD, &handles[1]))) return 1;
  for (int k = 0; k < c->repetitions; k++) {
    fill(c, &b, call, k);
    if (c->graph && k == 0 && (CUDA(cudaStreamBeginCapture, stream, 0) || enqueue(c, &b) || CUDA(cudaStreamEndCapture, stream, &graph) || CUDA(cudaGraphInstantiate, &executable, graph, 0ull))) return 1;
    meet();
    double begin = now();
    if (c->step_calls) report_step("linkwise_step_begin");
    for (int i = 0; i < (c->step_calls ? c->step_calls : 1); i++)
      if (c->graph ? CUDA(cudaGraphLaunch, executable, stream) : enqueue(c, &b)) return 1;
    if (CUDA(cudaStreamSynchronize, stream)) return 1;
    if (c->step_calls) report_step("linkwise_step_end");
    double seconds = now() - begin, ended = time_of_day();
    struct wrong w = c->order ? (struct wrong){0, 0} : verify(c, &b, call, k);
    if (c->order && keep(c, &b, call, plan)) return 1;
    answer(c, &b, call, k, w, seconds, ended);
    meet(); // the buffers may change only when all ranks are done
  }
  if (executable) CUDA(cudaGraphExecDestroy, executable), CUDA(cudaGraphDestroy, graph);
  // NCCL gives a graph's registrations up at a later launch. Memory at the same address would be taken for this one until then.
  if (c->graph && c->registered) return 0;
  for (int i = 0; i < 2; i++)
    if (handles[i] && NCCL(ncclCommDeregister, comm, handles[i])) return 1;
  if (c->registered) return NCCL(ncclMemFree, b.from) || NCCL(ncclMemFree, b.to);
  return CUDA(cudaFree, b.from) || CUDA(cudaFree, b.to);
}

// A program's watchdog: a communicator that has failed, for example because a peer is gone, ends the process. Its kernels would wait for ever.
static void *watch_errors(void *unused) {
  (void)unused;
  int (*ask)(void *, int *) = (int (*)(void *, int *))must("ncclCommGetAsyncError"), result = 0;
  const char *(*last)(void *) = (const char *(*)(void *))dlsym(nccl, "ncclGetLastError");
  while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
    if (!ask(comm, &result) && result && result != IN_PROGRESS) {
      printf("@linkwise error the communicator has failed with %d: %s\n", result, last ? last(NULL) : "");
      fflush(stdout);
      _exit(EXIT_NCCL);
    }
    usleep(WATCH_US);
  }
  return NULL;
}

static int share_id(const char *path) {
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, sizeof *meeting)) return 1;
  meeting = mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (meeting == MAP_FAILED) return 1;
  if (rank == 0) {
    if (NCCL(ncclGetUniqueId, &meeting->id)) return 1;
    __atomic_store_n(&meeting->ready, 1, __ATOMIC_RELEASE);
  }
  while (!__atomic_load_n(&meeting->ready, __ATOMIC_ACQUIRE)) usleep(1000);
  return 0;
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc != 8) {
    fprintf(stderr, "usage: mover LIBNCCL PARENT_PID RANK RANKS DEVICE MEETING_FILE PLAN_FILE\n");
    return EXIT_USAGE;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (atoi(argv[2]) && getppid() != atoi(argv[2])) return EXIT_USAGE; // the bench died before prctl
  rank = atoi(argv[3]);
  ranks = atoi(argv[4]);
  cuda_symbol = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "linkwise_emu_symbol");
  unsigned long (*unknown)(void) = (unsigned long (*)(void))dlsym(RTLD_DEFAULT, "linkwise_emu_unknown_calls");
  if (!cuda_symbol || ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks) {
    printf("@linkwise error the emulation is not preloaded\n");
    return EXIT_NO_EMULATION;
  }
  nccl = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (!nccl) {
    printf("@linkwise error %s\n", dlerror());
    return EXIT_NCCL;
  }
  if (CUDA(cudaSetDevice, atoi(argv[5])) || share_id(argv[6])) return EXIT_NCCL;
  double begin = now();
  if (check(((int (*)(void **, int, unique_id, int))must("ncclCommInitRank"))(&comm, ranks, meeting->id, rank), "ncclCommInitRank")) return EXIT_NCCL;
  printf("@linkwise initialised %.3f\n", now() - begin);
  if (CUDA(cudaStreamCreateWithFlags, &stream, 1u)) return EXIT_NO_EMULATION;
  pthread_t watchdog;
  if (pthread_create(&watchdog, NULL, watch_errors, NULL)) return EXIT_NCCL;
  FILE *plan = fopen(argv[7], "r");
  char line[1024];
  struct call c;
  int bad = !plan;
  for (int call = 0; !bad && call < CALLS_MAX && fgets(line, sizeof line, plan); call++) {
    if (read_call(line, &c)) {
      printf("@linkwise error the plan's line %d is not valid: %s", call + 1, line);
      bad = 1;
    } else {
      bad = run_call(&c, call, argv[7]);
    }
  }
  if (plan) fclose(plan);
  __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
  pthread_join(watchdog, NULL);
  // Without kernels NCCL's proxies wait for ever, and so would the end of the communicator.
  const char *play = getenv("LINKWISE_EMU_PLAY");
  if (!bad && !(play && !strcmp(play, "nothing"))) bad = NCCL(ncclCommFinalize, comm) || NCCL(ncclCommDestroy, comm);
  if (!bad) printf("@linkwise done %.3f\n", now() - begin);
  fflush(stdout);
  _exit(bad ? EXIT_NCCL : unknown && unknown() ? EXIT_NOT_EMULATED : 0); // without the library's destructors: its threads may still run
}
