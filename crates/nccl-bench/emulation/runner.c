// SPDX-License-Identifier: Apache-2.0
// One process of a simulated node, with one or all of its ranks. It loads libnccl.so.2 and makes the calls of a plan file, one per line:
//
//   all_reduce 1024        (also all_gather, reduce_scatter, broadcast, reduce, alltoall, sendrecv; bytes as NCCL counts them)
//   graph all_reduce 1024  (captured into a CUDA graph, which is launched twice)
//
//   runner LIBNCCL PARENT_PID FIRST_RANK RANKS LOCAL_RANKS ID_FILE PLAN_FILE simulate|launch|both
//
// Without the emulation it runs on real GPUs and checks the sums. LINKWISE_CUDART names a libcudart; LINKWISE_DEVICES is the number of GPUs,
// to which ranks are assigned in turn.
//
// NCCL logs to standard output. Lines that begin with "@linkwise" name the call to which the next lines of NCCL belong.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOCAL_MAX = 64, FLOAT32 = 7, SUM = 0, EXIT_USAGE = 64, EXIT_NCCL = 65, EXIT_NOT_EMULATED = 66, EXIT_NO_EMULATION = 67, GRAPH_LAUNCHES = 2 };
typedef struct { char bytes[128]; } unique_id;

static int local_ranks, ranks;
static void *comms[LOCAL_MAX], *streams[LOCAL_MAX], *from[LOCAL_MAX], *to[LOCAL_MAX];

// A bench that is killed (Ctrl-C, kill) cannot clean up, so the runner does. All threads block the signals and a separate thread waits for them,
// because it may call any function.
static int parent;
static const char *run_folder;
static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where) {
  (void)st; (void)kind; (void)where;
  remove(path);
  return 0; // another node may have done it
}
static void *clean_up_after_parent(void *unused) {
  (void)unused;
  sigset_t ends;
  int signal_number = SIGTERM;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGHUP);
  sigwait(&ends, &signal_number);
  for (int i = 0; i < 100 && getppid() == parent; i++) usleep(2000); // Ctrl-C reaches the bench and the runner at once
  if (getppid() != parent) // other nodes do the same, and NCCL's threads may still make files
    for (int i = 0; i < 50 && access(run_folder, F_OK) == 0; i++) {
      nftw(run_folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
      usleep(5000);
    }
  _exit(128 + signal_number);
}
static int watch_parent(int pid, const char *file_of_run) {
  static char folder[4096];
  const char *slash = strrchr(file_of_run, '/');
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - file_of_run) : 0, file_of_run);
  parent = pid;
  run_folder = folder;
  sigset_t ends;
  pthread_t thread;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGHUP);
  if (!*folder || pthread_sigmask(SIG_BLOCK, &ends, NULL) || pthread_create(&thread, NULL, clean_up_after_parent, NULL)) return 1;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  return getppid() != pid; // the parent died before prctl
}

static void *nccl;
static void *must(const char *name) {
  void *f = dlsym(nccl, name);
  if (!f) {
    printf("@linkwise error the library has no %s\n", name);
    exit(EXIT_NCCL);
  }
  return f;
}
static void *(*cuda_symbol)(const char *), *cudart; // from the emulation, otherwise from libcudart
static void *cuda(const char *name) {
  void *f = cuda_symbol ? cuda_symbol(name) : dlsym(cudart, name);
  if (!f) {
    printf("@linkwise error there is no %s\n", name);
    exit(EXIT_NO_EMULATION);
  }
  return f;
}
static int device_count; // ranks share them in turn
static int set_device(int local_rank) { return ((int (*)(int))cuda("cudaSetDevice"))(local_rank % device_count); }
static const char *last_error(void) {
  const char *(*f)(void *) = (const char *(*)(void *))dlsym(nccl, "ncclGetLastError");
  return f ? f(NULL) : "";
}
static int check(int result, const char *what) {
  if (result) printf("@linkwise error %s failed with %d: %s\n", what, result, last_error());
  return result;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Node 0 makes the id. It writes the file under another name and renames it, so other nodes never read a partial file.
static int share_id(unique_id *id, int first_rank, const char *path) {
  if (first_rank == 0) {
    if (check(((int (*)(unique_id *))must("ncclGetUniqueId"))(id), "ncclGetUniqueId")) return 1;
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.part", path);
    FILE *f = fopen(temporary, "wb");
    int bad = !f || fwrite(id, sizeof *id, 1, f) != 1;
    if (f) bad |= fclose(f) != 0;
    return bad || rename(temporary, path);
  }
  FILE *f;
  while (!(f = fopen(path, "rb"))) usleep(2000); // the bench kills this process at its deadline
  int bad = fread(id, sizeof *id, 1, f) != 1;
  fclose(f);
  return bad;
}

typedef int (*reduction)(const void *, void *, size_t, int, int, void *, void *);
typedef int (*gather)(const void *, void *, size_t, int, void *, void *);
typedef int (*rooted_reduction)(const void *, void *, size_t, int, int, int, void *, void *);
typedef int (*rooted)(const void *, void *, size_t, int, int, void *, void *);
typedef int (*peer)(const void *, size_t, int, int, void *, void *);

// Bytes of the call: whole elements, and equal shares of all ranks. 0: unknown collective.
static size_t whole_bytes(const char *name, size_t bytes) {
  size_t unit = 4;
  if (!strcmp(name, "all_gather") || !strcmp(name, "reduce_scatter") || !strcmp(name, "alltoall")) unit = 4 * (size_t)ranks;
  return bytes < unit ? unit : bytes / unit * unit;
}

static int enqueue(const char *name, size_t bytes, int i, int rank) {
  void *comm = comms[i], *stream = streams[i];
  size_t elements = bytes / 4;
  if (!strcmp(name, "all_reduce")) return ((reduction)must("ncclAllReduce"))(from[i], to[i], elements, FLOAT32, SUM, comm, stream);
  if (!strcmp(name, "reduce_scatter")) return ((reduction)must("ncclReduceScatter"))(from[i], to[i], elements / (size_t)ranks, FLOAT32, SUM, comm, stream);
  if (!strcmp(name, "all_gather")) return ((gather)must("ncclAllGather"))(from[i], to[i], elements / (size_t)ranks, FLOAT32, comm, stream);
  if (!strcmp(name, "broadcast")) return ((rooted)must("ncclBroadcast"))(from[i], to[i], elements, FLOAT32, 0, comm, stream);
  if (!strcmp(name, "reduce")) return ((rooted_reduction)must("ncclReduce"))(from[i], to[i], elements, FLOAT32, SUM, 0, comm, stream);
  int peers = !strcmp(name, "alltoall") ? ranks : !strcmp(name, "sendrecv") ? 1 : 0;
  if (peers > 1) elements /= (size_t)ranks;
  for (int k = 0; k < peers; k++) { // alltoall: every rank; sendrecv: one step round the ring
    int next = peers > 1 ? k : (rank + 1) % ranks, previous = peers > 1 ? k : (rank + ranks - 1) % ranks;
    int r = ((peer)must("ncclSend"))(from[i], elements, FLOAT32, next, comm, stream);
    if (!r) r = ((peer)must("ncclRecv"))(to[i], elements, FLOAT32, previous, comm, stream);
    if (r) return r;
  }
  return peers ? 0 : 4; // invalid argument
}

// LINKWISE_EMU_IN_GROUP=n: makes every call n times, in one group.
static int first;
static int group(const char *name, size_t bytes) {
  const char *said = getenv("LINKWISE_EMU_IN_GROUP");
  int times = said ? atoi(said) : 1;
  int r = check(((int (*)(void))must("ncclGroupStart"))(), "ncclGroupStart");
  for (int k = 0; k < times * local_ranks && !r; k++) {
    int i = k % local_ranks;
    set_device(i);
    r = check(enqueue(name, bytes, i, first + i), name);
  }
  return r;
}

struct simulation { size_t size; unsigned magic, version; float estimate_us; };

static int simulate(int call, const char *name, size_t bytes, int version) {
  int (*end)(struct simulation *) = (int (*)(struct simulation *))dlsym(nccl, "ncclGroupSimulateEnd");
  if (!end) return 0; // before 2.22
  struct simulation s = {sizeof s, 0x74685283, (unsigned)version, 0};
  printf("@linkwise simulate %d\n", call);
  if (group(name, bytes) || check(end(&s), "ncclGroupSimulateEnd")) return 1;
  printf("@linkwise estimate %d %.6f\n", call, s.estimate_us);
  return 0;
}

// On real GPUs every input is filled with the bytes 0x3f, 0.747 as a float; the sum is 0.747 times the number of ranks.
static int sum_is_known(const char *name) { return !strcmp(name, "all_reduce"); }
static void fill_inputs(size_t bytes) {
  for (int i = 0; i < local_ranks; i++) {
    set_device(i);
    ((int (*)(void *, int, size_t))cuda("cudaMemset"))(from[i], 0x3f, bytes);
    ((int (*)(void *, int, size_t))cuda("cudaMemset"))(to[i], 0, bytes);
    ((int (*)(void))cuda("cudaDeviceSynchronize"))();
  }
}
static int sums_are_right(size_t bytes) {
  enum { TO_HOST = 2 };
  float one, got[2];
  memset(&one, 0x3f, sizeof one);
  for (int i = 0; i < local_ranks; i++) {
    int (*copy)(void *, const void *, size_t, int) = (int (*)(void *, const void *, size_t, int))cuda("cudaMemcpy");
    set_device(i);
    if (copy(&got[0], to[i], 4, TO_HOST) || copy(&got[1], (char *)to[i] + bytes - 4, 4, TO_HOST)) return 0;
    for (int k = 0; k < 2; k++)
      if (got[k] < 0.999f * one * (float)ranks || got[k] > 1.001f * one * (float)ranks) return 0;
  }
  return 1;
}

enum { DISCARDED = 2 }; // captured into a graph that is never launched
static int launch(int call, const char *name, size_t bytes, int graph) {
  unsigned long (*launches)(int, unsigned *, unsigned *) = (unsigned long (*)(int, unsigned *, unsigned *))dlsym(RTLD_DEFAULT, "linkwise_emu_launches");
  unsigned grid = 0, block = 0;
  unsigned long before = launches ? launches(0, NULL, NULL) : 0;
  if (!launches && sum_is_known(name)) fill_inputs(bytes);
  printf("@linkwise launch %d\n", call);
  for (int i = 0; graph && i < local_ranks; i++)
    if (set_device(i) || ((int (*)(void *, int))cuda("cudaStreamBeginCapture"))(streams[i], 0)) { printf("@linkwise error cannot begin a capture\n"); return 1; }
  if (group(name, bytes) || check(((int (*)(void))must("ncclGroupEnd"))(), "ncclGroupEnd")) return 1;
  for (int i = 0; graph && i < local_ranks; i++) {
    void *g = NULL, *executable = NULL;
    set_device(i);
    int r = ((int (*)(void *, void **))cuda("cudaStreamEndCapture"))(streams[i], &g);
    if (!r && graph == DISCARDED) { ((int (*)(void *))cuda("cudaGraphDestroy"))(g); continue; }
    if (r || ((int (*)(void **, void *, unsigned long long))cuda("cudaGraphInstantiate"))(&executable, g, 0)) {
      printf("@linkwise error the capture of %s failed with %d\n", name, r);
      return 1;
    }
    if (i == 0 && launches && launches(0, NULL, NULL) != before) { printf("@linkwise error a kernel ran while its stream was captured\n"); return 1; }
    for (int k = 0; k < GRAPH_LAUNCHES; k++) ((int (*)(void *, void *))cuda("cudaGraphLaunch"))(executable, streams[i]);
    ((int (*)(void *))cuda("cudaGraphExecDestroy"))(executable);
    ((int (*)(void *))cuda("cudaGraphDestroy"))(g);
  }
  for (int i = 0; i < local_ranks; i++) {
    int r = set_device(i);
    if (!r) r = ((int (*)(void *))cuda("cudaStreamSynchronize"))(streams[i]);
    if (r) { printf("@linkwise error %s ended with CUDA error %d\n", name, r); return 1; }
  }
  if (!launches && sum_is_known(name) && !sums_are_right(bytes)) { printf("@linkwise error %s of %zu bytes has a wrong sum\n", name, bytes); return 1; }
  if (graph == DISCARDED) return 0;
  unsigned long count = launches ? launches(0, &grid, &block) - before : 0;
  printf("@linkwise launched %d kernels %lu grid %u block %u\n", call, count, grid, block);
  return 0;
}

// Ranks in separate processes do not wait for each other, since no kernel runs. LINKWISE_EMU_IN_STEP_EVERY=n makes them wait for each other at
// every n-th call, as a training step does. LINKWISE_EMU_LATE_MS delays this rank at the first call and in the middle. LINKWISE_EMU_PAUSE_US is
// a pause before every call, in place of a job's computation.
static volatile int *reached; // by rank: calls begun
static int meet_every, late_ms, pause_us;
// LINKWISE_EMU_SIMULATE=call:times makes this rank simulate a call that often before the call, as a planner does on one rank.
static int simulated_call = -1, simulations;
// LINKWISE_EMU_CAPTURE=call:times makes this rank capture a call that often into a graph which it destroys without a launch.
static int captured_call = -1, captures;
static void prepare_simulations(void) {
  const char *text = getenv("LINKWISE_EMU_SIMULATE");
  if (text && sscanf(text, "%d:%d", &simulated_call, &simulations) != 2) simulated_call = -1;
  text = getenv("LINKWISE_EMU_CAPTURE");
  if (text && sscanf(text, "%d:%d", &captured_call, &captures) != 2) captured_call = -1;
}
static int prepare_meeting(const char *id_file) {
  const char *every = getenv("LINKWISE_EMU_IN_STEP_EVERY"), *late = getenv("LINKWISE_EMU_LATE_MS"), *pause_text = getenv("LINKWISE_EMU_PAUSE_US");
  late_ms = late ? atoi(late) : 0;
  pause_us = pause_text ? atoi(pause_text) : 0;
  meet_every = every ? atoi(every) : 0;
  if (meet_every <= 0) return 0;
  char path[4096];
  snprintf(path, sizeof path, "%s.step", id_file);
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  size_t bytes = sizeof(int) * (size_t)ranks;
  if (fd < 0 || ftruncate(fd, (off_t)bytes)) return 1;
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  reached = p;
  return p == MAP_FAILED;
}
static void meet(int call, int calls) {
  if (pause_us > 0) usleep((useconds_t)pause_us);
  if (late_ms && (call == 0 || call == calls / 2)) usleep((useconds_t)late_ms * 1000);
  if (!meet_every || call % meet_every) return;
  reached[first] = call + 1;
  for (int i = 0; i < ranks; i++)
    while (reached[i] < call + 1) usleep(50); // the bench kills this process at its deadline
}
static int lines_of(const char *path) {
  FILE *f = fopen(path, "r");
  int n = 0;
  for (int c; f && (c = fgetc(f)) != EOF;) n += c == '\n';
  if (f) fclose(f);
  return n;
}

static int run_plan(const char *path, const char *mode, int version) {
  FILE *plan = fopen(path, "r");
  if (!plan) return 1;
  char line[128];
  int bad = 0;
  int calls = lines_of(path);
  double begin = now();
  for (int call = 0; !bad && fgets(line, sizeof line, plan); call++) {
    char name[32];
    meet(call, calls);
    unsigned long long requested;
    int graph = !strncmp(line, "graph ", 6);
    if (sscanf(line + (graph ? 6 : 0), "%31s %llu", name, &requested) != 2) { bad = 1; break; }
    size_t bytes = whole_bytes(name, requested);
    printf("@linkwise call %d %s %zu %llu %s\n", call, name, bytes, requested, graph ? "graph" : "plain");
    for (int k = 0; call == simulated_call && k < simulations && !bad; k++) bad = simulate(call, name, bytes, version);
    for (int k = 0; call == captured_call && k < captures && !bad; k++) bad = launch(call, name, bytes, DISCARDED);
    if (!bad && !graph && strcmp(mode, "launch")) bad = simulate(call, name, bytes, version);
    if (!bad && strcmp(mode, "simulate")) bad = launch(call, name, bytes, graph);
  }
  printf("@linkwise called %.6f\n", now() - begin);
  fclose(plan);
  return bad;
}

static size_t largest(const char *path) {
  FILE *plan = fopen(path, "r");
  char line[128];
  unsigned long long most = 1 << 20, n;
  while (plan && fgets(line, sizeof line, plan)) {
    const char *space = strrchr(line, ' ');
    if (space && sscanf(space, "%llu", &n) == 1 && n > most) most = n;
  }
  if (plan) fclose(plan);
  return most + (size_t)ranks * 4;
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc != 9) {
    fprintf(stderr, "usage: runner LIBNCCL PARENT_PID FIRST_RANK RANKS LOCAL_RANKS ID_FILE PLAN_FILE simulate|launch|both\n");
    return EXIT_USAGE;
  }
  if (atoi(argv[2]) && watch_parent(atoi(argv[2]), argv[6])) return EXIT_USAGE;
  first = atoi(argv[3]);
  ranks = atoi(argv[4]);
  local_ranks = atoi(argv[5]);
  cuda_symbol = (void *(*)(const char *))dlsym(RTLD_DEFAULT, "linkwise_emu_symbol");
  if (!cuda_symbol && getenv("LINKWISE_CUDART")) cudart = dlopen(getenv("LINKWISE_CUDART"), RTLD_NOW | RTLD_GLOBAL);
  device_count = getenv("LINKWISE_DEVICES") ? atoi(getenv("LINKWISE_DEVICES")) : local_ranks;
  unsigned long (*unknown)(void) = (unsigned long (*)(void))dlsym(RTLD_DEFAULT, "linkwise_emu_unknown_calls");
  if ((!cuda_symbol && !cudart) || local_ranks < 1 || local_ranks > LOCAL_MAX || device_count < 1) {
    printf("@linkwise error the emulation is not preloaded\n");
    return EXIT_NO_EMULATION;
  }
  nccl = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (!nccl) {
    printf("@linkwise error %s\n", dlerror());
    return EXIT_NCCL;
  }
  int version = 0;
  ((int (*)(int *))must("ncclGetVersion"))(&version);
  printf("@linkwise version %d\n", version);
  unique_id id;
  double begin = now();
  if (share_id(&id, first, argv[6])) return EXIT_NCCL;
  int (*start)(void) = (int (*)(void))must("ncclGroupStart"), (*end)(void) = (int (*)(void))must("ncclGroupEnd");
  int (*init)(void **, int, unique_id, int) = (int (*)(void **, int, unique_id, int))must("ncclCommInitRank");
  int bad = check(start(), "ncclGroupStart");
  for (int i = 0; i < local_ranks && !bad; i++) {
    if (set_device(i)) { printf("@linkwise error there is no device for local rank %d\n", i); bad = 1; }
    else bad = check(init(&comms[i], ranks, id, first + i), "ncclCommInitRank");
  }
  if (!bad) bad = check(end(), "ncclCommInitRank");
  if (bad) return EXIT_NCCL;
  printf("@linkwise initialised %.3f\n", now() - begin);
  size_t bytes = largest(argv[7]);
  for (int i = 0; i < local_ranks; i++) {
    set_device(i);
    int (*allocate)(void **, size_t) = (int (*)(void **, size_t))cuda("cudaMalloc");
    if (allocate(&from[i], bytes) || allocate(&to[i], bytes) || ((int (*)(void **, unsigned))cuda("cudaStreamCreateWithFlags"))(&streams[i], 1)) {
      printf("@linkwise error no room for buffers of %zu bytes\n", bytes);
      return EXIT_NO_EMULATION;
    }
  }
  prepare_simulations();
  bad = prepare_meeting(argv[6]) || run_plan(argv[7], argv[8], version);
  if (bad) return EXIT_NCCL;
  start();
  for (int i = 0; i < local_ranks; i++) {
    set_device(i);
    bad |= check(((int (*)(void *))must("ncclCommFinalize"))(comms[i]), "ncclCommFinalize");
  }
  bad |= check(end(), "ncclCommFinalize");
  for (int i = 0; i < local_ranks; i++) {
    set_device(i);
    bad |= check(((int (*)(void *))must("ncclCommDestroy"))(comms[i]), "ncclCommDestroy");
  }
  if (bad) return EXIT_NCCL;
  printf("@linkwise done %.3f\n", now() - begin);
  fflush(stdout);
  _exit(unknown && unknown() ? EXIT_NOT_EMULATED : 0); // without the library's destructors: its threads may still run
}
