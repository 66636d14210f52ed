// SPDX-License-Identifier: Apache-2.0
// The watch over all ranks of a program: which call of NCCL or CUDA each waits in, and when anything last moved there. A thread per process tells it
// to the other ranks through a table in the run's folder. The run ends when no rank has moved for LINKWISE_EMU_STALL_S seconds and every rank waits in
// such a call or has ended. A rank outside these calls may compute or sleep, so then there is only a note.
#include "emu.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { SEATS = 256, THREADS_MAX = 256, CALL_BYTES = 64, TICK_US = 200000, GRACE_US = 500000, EXIT_STUCK = 69, NAMED_MAX = 8 };
static const double LATE_S = 2;          // a rank whose own watch is later than that is not judged
static const double COMPUTES = 0.25;     // share of a processor from which a process computes instead of waiting
static const double POLLS_S = 1e-3;      // processor time of a thread between two naps up to which it only looks
struct seat { int32_t pid, inside; double moved, seen, since; char call[CALL_BYTES]; };
struct table { atomic_int ends; struct seat seats[SEATS]; };

static struct table alone, *table;
static int rank, ranks = 1;
static atomic_ulong moves, polled_ns;
static atomic_int program_runs;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { const char *call; unsigned communicator; double since; } inside[THREADS_MAX];
static __thread int depth, place;

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int watch_serves(void) { return serves_program(); }
int watch_ends(void) { return table && atomic_load(&table->ends); }
void watch_program_runs(int change) { atomic_fetch_add(&program_runs, change); }
// A sleep of a thread that polls. What it computes between two naps is waiting, unless it is long.
void watch_nap(unsigned us) {
  static __thread double last;
  double cpu = seconds(CLOCK_THREAD_CPUTIME_ID), since = cpu - last;
  if (since < POLLS_S) atomic_fetch_add_explicit(&polled_ns, (unsigned long)(since * 1e9), memory_order_relaxed);
  last = cpu;
  usleep(us);
}
void watch_moved(void) { atomic_fetch_add_explicit(&moves, 1, memory_order_relaxed); }

char *shared_file(const char *name, size_t bytes) {
  const char *folder = getenv("LINKWISE_EMU_SHARED_MEMORY");
  char path[4096];
  if (!folder || snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return NULL;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void *p = fd >= 0 && !ftruncate(fd, (off_t)bytes) ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (fd >= 0) close(fd);
  return p == MAP_FAILED ? NULL : p;
}

// ---- the other ranks
enum state { OUTSIDE, MOVES, WAITS, ENDED };
static char process_state(int pid) { // as in /proc/PID/stat; 0: there is no such process
  char path[64], text[256] = "";
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
  if (fd >= 0) close(fd);
  const char *end = n > 0 ? strrchr(text, ')') : NULL;
  return end && end[1] ? end[2] : 0;
}
// A rank that ended before its first call has no seat; `linkwise emulate --each` then leaves a file.
static int left(int r) {
  const char *folder = getenv("LINKWISE_EMU_SHARED_MEMORY");
  char path[4096];
  return folder && snprintf(path, sizeof path, "%s/left-%d", folder, r) < (int)sizeof path && access(path, F_OK) == 0;
}
static enum state state_of(int r, double now) {
  const struct seat *s = &table->seats[r];
  if (!s->pid) return left(r) ? ENDED : OUTSIDE;
  char p = process_state(s->pid);
  if (!p || p == 'Z' || p == 'X') return ENDED;
  if (p == 'T' || p == 't' || !s->inside) return OUTSIDE;
  return now - s->seen > LATE_S || now - s->moved < config()->stall_s ? MOVES : WAITS;
}

static void end_all(double now) {
  int none = 0;
  if (!atomic_compare_exchange_strong(&table->ends, &none, 1)) return; // another rank is faster
  emu_log(0, "stuck: nothing has moved in any rank for %.0f s", config()->stall_s);
  for (int r = 0; r < ranks; r++) {
    if (state_of(r, now) == ENDED) emu_log(0, "stuck: rank %d has ended", r);
    else emu_log(0, "stuck: rank %d is in %s for %.0f s", r, table->seats[r].call, now - table->seats[r].since);
  }
}
static void judge(double now) {
  static unsigned long noted = -1ul;
  char who[NAMED_MAX * 8 + 8] = "";
  int outside = 0, moving = 0, first = 1;
  for (int r = 0; r < ranks; r++) {
    enum state s = state_of(r, now);
    if (s == WAITS && r < rank) first = 0; // one rank speaks
    if (s == OUTSIDE && outside++ < NAMED_MAX) snprintf(who + strlen(who), sizeof who - strlen(who), "%s%d", outside > 1 ? ", " : "", r);
    moving += s == MOVES;
  }
  if (!outside && !moving) return end_all(now);
  if (!first || noted == atomic_load(&moves) || now - table->seats[rank].moved < config()->stall_s + LATE_S) return; // ranks differ by moments
  noted = atomic_load(&moves);
  if (outside) emu_log(0, "note: rank %d waits in %s for %.0f s; outside NCCL and CUDA: rank %s", rank, table->seats[rank].call, now - table->seats[rank].since, who);
  else emu_log(0, "note: rank %d waits in %s for %.0f s; other ranks move", rank, table->seats[rank].call, now - table->seats[rank].since);
}

static void *watch(void *unused) {
  (void)unused;
  struct seat *mine = &table->seats[rank];
  unsigned long before = -1ul;
  double computed = 0, looked = seconds(CLOCK_MONOTONIC);
  for (;;) {
    double now = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - (double)atomic_load(&polled_ns) * 1e-9;
    unsigned long moved = atomic_load(&moves);
    pthread_mutex_lock(&lock);
    int longest = -1;
    for (int i = 0; i < THREADS_MAX; i++)
      if (inside[i].call && (longest < 0 || inside[i].since < inside[longest].since)) longest = i;
    if (longest >= 0) {
      int n = snprintf(mine->call, CALL_BYTES, "%s", inside[longest].call);
      if (inside[longest].communicator) snprintf(mine->call + n, CALL_BYTES - (size_t)n, " of communicator %04x", inside[longest].communicator);
      mine->since = inside[longest].since;
    }
    mine->inside = longest >= 0 && !atomic_load(&program_runs);
    pthread_mutex_unlock(&lock);
    if (moved != before || cpu - computed > COMPUTES * (now - looked)) mine->moved = now;
    mine->seen = now;
    mine->pid = getpid();
    before = moved, computed = cpu, looked = now;
    if (atomic_load(&table->ends)) {
      usleep(GRACE_US); // the streams say what their channels wait for
      _exit(EXIT_STUCK);
    }
    if (mine->inside && now - mine->moved > config()->stall_s) judge(now);
    usleep(TICK_US);
  }
  return NULL;
}
static void start(void) {
  const char *rank_text = getenv("LINKWISE_EMU_RANK"), *ranks_text = getenv("LINKWISE_EMU_RANKS");
  if (rank_text && ranks_text) rank = atoi(rank_text), ranks = atoi(ranks_text);
  if (!serves_program() || config()->stall_s <= 0 || rank < 0 || rank >= ranks || ranks > SEATS) return;
  table = ranks > 1 ? (struct table *)(void *)shared_file("watch", sizeof *table) : NULL;
  if (!table) table = &alone, rank = 0, ranks = 1;
  sigset_t all, old;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &old); // the program's handlers run on its own threads
  if (pthread_create(&thread, NULL, watch, NULL) == 0) pthread_detach(thread);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void watch_enter(const char *call, unsigned communicator) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  if (depth++) return;
  pthread_once(&once, start);
  if (!table) return;
  watch_moved();
  pthread_mutex_lock(&lock);
  for (place = 0; place < THREADS_MAX && inside[place].call; place++) {}
  if (place < THREADS_MAX) inside[place].call = call, inside[place].communicator = communicator, inside[place].since = seconds(CLOCK_MONOTONIC);
  pthread_mutex_unlock(&lock);
}
void watch_leave(void) {
  if (--depth || !table) return;
  watch_moved();
  pthread_mutex_lock(&lock);
  if (place < THREADS_MAX) inside[place].call = NULL;
  pthread_mutex_unlock(&lock);
}
