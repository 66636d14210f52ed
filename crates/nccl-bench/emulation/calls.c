// SPDX-License-Identifier: Apache-2.0
// NCCL's entry points, which a program calls by linking (this library comes first) or by dlsym (attach.c changes the library's symbols). The watch
// learns which call a rank is in, and calls of all ranks of a communicator are compared: the k-th collective of each must have the same operation,
// count, type and root, and the k-th message from one rank to another the same length at both. The first difference ends the run.
//
// Only what NCCL forbids is reported. Not compared: empty calls, which NCCL drops; collectives of one group in their order, which NCCL sorts; every
// call of a communicator after one of its calls was captured into a graph or has failed; all-to-all, gather and scatter; unknown communicators.
#include "emu.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { char bytes[128]; } unique_id;
enum { SUCCESS = 0, INTERNAL_ERROR = 3, IN_PROGRESS = 7, TYPES = 12, OPERATIONS = 5, EXIT_MISMATCH = 71 };
enum call_kind { K_ALL_REDUCE, K_REDUCE_SCATTER, K_REDUCE, K_BROADCAST, K_ALL_GATHER, K_SEND, K_RECV };
static const char *const kinds[] = {"ncclAllReduce", "ncclReduceScatter", "ncclReduce", "ncclBroadcast", "ncclAllGather", "ncclSend", "ncclRecv"};
static const char *const types[TYPES] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
static const int type_bytes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
static const char *const operations[OPERATIONS + 1] = {"sum", "prod", "max", "min", "avg", "an operation of its own"};

// ---- the entry points
#define CALLS(X) \
  X(ncclAllReduce) X(ncclReduceScatter) X(ncclReduce) X(ncclBroadcast) X(ncclBcast) X(ncclAllGather) X(ncclSend) X(ncclRecv) X(ncclAlltoAll) \
  X(ncclGather) X(ncclScatter) X(ncclGroupStart) X(ncclGroupEnd) X(ncclGroupSimulateEnd) X(ncclCommInitRank) X(ncclCommInitRankConfig) \
  X(ncclCommInitRankScalable) X(ncclCommInitAll) X(ncclCommSplit) X(ncclCommFinalize) X(ncclCommDestroy) X(ncclCommAbort) X(ncclCommUserRank)
#define NUMBER(name) N_##name,
enum { CALLS(NUMBER) ENTRY_POINTS };
#define NAME(name) #name,
static const char *const names[ENTRY_POINTS] = {CALLS(NAME)};
static void *real[ENTRY_POINTS];
static int refused(void) { return INTERNAL_ERROR; }
static void *real_of(int i) {
  if (!real[i]) real[i] = dlsym(RTLD_NEXT, names[i]);
  return real[i] ? real[i] : (void *)refused;
}
PUBLIC int ncclCommUserRank(void *comm, int *rank);
#define REAL(name) ((__typeof__(name) *)real_of(N_##name))

// ---- communicators of this process, and the boards on which their ranks compare
enum { COMMS_MAX = 1024, PEERS = 256, CALLS_KEPT = 4096, MESSAGES_KEPT = 4096 };
struct call { uint64_t number, count; int kind, type, operation, root, rank; }; // number 0: none
struct message { uint64_t number, bytes; int from, to, kind; };
struct board { int off; struct call calls[CALLS_KEPT]; struct message messages[MESSAGES_KEPT]; };
struct comm { void *handle; uint64_t key; int rank, ranks; uint64_t calls, splits, sent[PEERS], received[PEERS]; struct board *board; };
static struct comm *comms[COMMS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int lock_file = -1; // among processes; the kernel opens it when one ends

static uint64_t mix(uint64_t hash, const void *bytes, size_t count) {
  for (const unsigned char *p = bytes; count--; p++) hash = (hash ^ *p) * 1099511628211ull;
  return hash;
}
#define SEED 1469598103934665603ull

static void begin(void) {
  pthread_mutex_lock(&lock);
  if (lock_file < 0) {
    const char *folder = getenv("LINKWISE_EMU_SHARED_MEMORY");
    char path[4096];
    if (folder && snprintf(path, sizeof path, "%s/calls", folder) < (int)sizeof path) lock_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  }
  if (lock_file >= 0) flock(lock_file, LOCK_EX);
}
static void end(void) {
  if (lock_file >= 0) flock(lock_file, LOCK_UN);
  pthread_mutex_unlock(&lock);
}
// With the lock held.
static struct comm **slot_of(const void *handle) {
  for (int i = 0; i < COMMS_MAX; i++)
    if (comms[i] && comms[i]->handle == handle) return &comms[i];
  return NULL;
}
static void forget(void *handle) {
  begin();
  struct comm **at = slot_of(handle);
  if (at) {
    if ((*at)->board) munmap((*at)->board, sizeof *(*at)->board);
    free(*at);
    *at = NULL;
  }
  end();
}
static void learn(void *handle, uint64_t key, int rank, int ranks) {
  if (!handle || !watch_serves()) return;
  forget(handle);
  begin();
  int i = 0;
  while (i < COMMS_MAX && comms[i]) i++;
  if (i < COMMS_MAX && (comms[i] = calloc(1, sizeof *comms[i]))) {
    char name[32];
    snprintf(name, sizeof name, "calls-%016llx", (unsigned long long)key);
    *comms[i] = (struct comm){.handle = handle, .key = key, .rank = rank, .ranks = ranks};
    comms[i]->board = (struct board *)(void *)shared_file(name, sizeof *comms[i]->board);
  }
  end();
}
static unsigned label(const void *handle) {
  pthread_mutex_lock(&lock);
  struct comm **at = slot_of(handle);
  unsigned l = at ? (unsigned)((*at)->key >> 16 & 0xffff) | 1 : 0;
  pthread_mutex_unlock(&lock);
  return l;
}
static int rank_of_process(void) {
  const char *s = getenv("LINKWISE_EMU_RANK");
  return s ? atoi(s) : 0;
}

// ---- comparing
static int is_copy(int kind) { return kind == K_BROADCAST || kind == K_ALL_GATHER; }
static int differ(const struct call *a, const struct call *b) {
  if (a->kind != b->kind || a->root != b->root) return 1;
  if (is_copy(a->kind)) return a->count * (uint64_t)type_bytes[a->type] != b->count * (uint64_t)type_bytes[b->type];
  return a->count != b->count || a->type != b->type || a->operation != b->operation;
}
static void describe(char *out, size_t room, const struct call *c) {
  int n = snprintf(out, room, "%s of %llu %s", kinds[c->kind], (unsigned long long)c->count, types[c->type]);
  if (!is_copy(c->kind)) n += snprintf(out + n, room - (size_t)n, ", %s", operations[c->operation]);
  if (c->kind == K_REDUCE || c->kind == K_BROADCAST) snprintf(out + n, room - (size_t)n, ", root %d", c->root);
}
// With the lock held, as all below. A slot holds the latest call with its number modulo CALLS_KEPT: a rank that is further behind is not compared.
static void compare_call(struct comm *c, struct call mine) {
  mine.number = ++c->calls;
  struct call *other = &c->board->calls[mine.number % CALLS_KEPT];
  if (other->number < mine.number) *other = mine;
  if (other->number != mine.number || !differ(other, &mine)) return;
  char a[128], b[128];
  describe(a, sizeof a, &mine);
  describe(b, sizeof b, other);
  emu_log(0, "mismatch: rank %d calls %s where rank %d calls %s (collective %llu of communicator %04x)", mine.rank, a, other->rank, b,
          (unsigned long long)mine.number, (unsigned)(c->key >> 16 & 0xffff) | 1);
  _exit(EXIT_MISMATCH);
}
static void compare_message(struct comm *c, int kind, int peer, uint64_t bytes) {
  if (c->rank < 0 || peer < 0 || peer >= PEERS || peer >= c->ranks) { c->board->off = 1; return; }
  struct message mine = {kind == K_SEND ? ++c->sent[peer] : ++c->received[peer], bytes, kind == K_SEND ? c->rank : peer, kind == K_SEND ? peer : c->rank, kind};
  uint64_t hash = mix(mix(mix(SEED, &mine.from, sizeof mine.from), &mine.to, sizeof mine.to), &mine.number, sizeof mine.number);
  struct message *other = &c->board->messages[(hash ^ hash >> 32) % MESSAGES_KEPT];
  int pair = other->number == mine.number && other->from == mine.from && other->to == mine.to && other->kind != kind;
  if (pair && other->bytes != bytes) {
    emu_log(0, "mismatch: rank %d sends %llu bytes to rank %d, which receives %llu (message %llu between them in communicator %04x)", mine.from,
            (unsigned long long)(kind == K_SEND ? bytes : other->bytes), mine.to, (unsigned long long)(kind == K_SEND ? other->bytes : bytes),
            (unsigned long long)mine.number, (unsigned)(c->key >> 16 & 0xffff) | 1);
    _exit(EXIT_MISMATCH);
  }
  *other = mine;
}

// Calls of the open group of this thread.
struct queued { void *handle; struct call call; };
static __thread struct queued *group;
static __thread int group_depth, group_count, group_room, nested; // nested: NCCL's own calls of its entry points

static int order_of_calls(const void *x, const void *y) {
  const struct call *a = &((const struct queued *)x)->call, *b = &((const struct queued *)y)->call;
  uint64_t a_bytes = a->count * (uint64_t)type_bytes[a->type], b_bytes = b->count * (uint64_t)type_bytes[b->type];
  if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
  if (a_bytes != b_bytes) return a_bytes < b_bytes ? -1 : 1;
  if (a->root != b->root || is_copy(a->kind)) return a->root - b->root;
  if (a->type != b->type) return a->type < b->type ? -1 : 1;
  return a->operation - b->operation;
}
static void compare(const struct queued *q) {
  struct comm **at = slot_of(q->handle), *c = at ? *at : NULL;
  if (!c || !c->board || c->board->off) return;
  if (c->rank < 0 && REAL(ncclCommUserRank)(q->handle, &c->rank)) c->rank = -1; // a part of a split communicator
  struct call call = q->call;
  call.rank = c->rank >= 0 ? c->rank : rank_of_process();
  if (call.kind == K_SEND || call.kind == K_RECV) compare_message(c, call.kind, call.root, call.count * (uint64_t)type_bytes[call.type]);
  else compare_call(c, call);
}
static void off(void *handle) {
  begin();
  struct comm **at = slot_of(handle);
  if (at && (*at)->board) (*at)->board->off = 1;
  end();
}
static void note_call(int kind, uint64_t count, int type, int operation, int root, void *handle, void *stream) {
  if (nested || !watch_serves() || !count || type < 0 || type >= TYPES || operation < 0 || root < 0) return;
  if (stream_captured(stream)) return off(handle);
  struct queued q = {handle, {0, count, kind, type, operation < OPERATIONS ? operation : OPERATIONS, root, 0}};
  if (!group_depth) {
    begin();
    compare(&q);
    end();
    return;
  }
  if (group_count == group_room) {
    int room = group_room ? 2 * group_room : 64;
    struct queued *grown = realloc(group, sizeof *grown * (size_t)room);
    if (!grown) return off(handle);
    group = grown, group_room = room;
  }
  group[group_count++] = q;
}
// Messages keep their order; collectives of one communicator go into an order that all ranks have.
static void close_group(void) {
  static __thread struct queued *own;
  struct queued *collectives = group_count ? realloc(own, sizeof *own * (size_t)group_count) : NULL;
  if (!collectives) { group_count = 0; return; }
  own = collectives;
  int count = 0;
  for (int i = 0; i < group_count; i++)
    if (group[i].call.kind != K_SEND && group[i].call.kind != K_RECV) collectives[count++] = group[i];
  qsort(collectives, (size_t)count, sizeof *collectives, order_of_calls);
  begin();
  for (int i = 0; i < group_count; i++)
    if (group[i].call.kind == K_SEND || group[i].call.kind == K_RECV) compare(&group[i]);
  for (int i = 0; i < count; i++) compare(&collectives[i]);
  end();
  group_count = 0;
}

// The call itself. Calls that NCCL makes of its own entry points are not the program's.
#define WATCHED(name, handle, call) ({ \
  watch_enter(#name, nested ? 0 : label(handle)); \
  nested++; \
  int done = (call); \
  nested--; \
  watch_leave(); \
  if (!nested && done != SUCCESS && done != IN_PROGRESS) off(handle); \
  done; })

PUBLIC int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream) {
  note_call(K_ALL_REDUCE, count, type, operation, 0, comm, stream);
  return WATCHED(ncclAllReduce, comm, REAL(ncclAllReduce)(from, to, count, type, operation, comm, stream));
}
PUBLIC int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream) {
  note_call(K_REDUCE_SCATTER, count, type, operation, 0, comm, stream);
  return WATCHED(ncclReduceScatter, comm, REAL(ncclReduceScatter)(from, to, count, type, operation, comm, stream));
}
PUBLIC int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root, void *comm, void *stream) {
  note_call(K_REDUCE, count, type, operation, root, comm, stream);
  return WATCHED(ncclReduce, comm, REAL(ncclReduce)(from, to, count, type, operation, root, comm, stream));
}
PUBLIC int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
  note_call(K_BROADCAST, count, type, 0, root, comm, stream);
  return WATCHED(ncclBroadcast, comm, REAL(ncclBroadcast)(from, to, count, type, root, comm, stream));
}
PUBLIC int ncclBcast(void *buffer, size_t count, int type, int root, void *comm, void *stream) {
  note_call(K_BROADCAST, count, type, 0, root, comm, stream);
  return WATCHED(ncclBcast, comm, REAL(ncclBcast)(buffer, count, type, root, comm, stream));
}
PUBLIC int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
  note_call(K_ALL_GATHER, count, type, 0, 0, comm, stream);
  return WATCHED(ncclAllGather, comm, REAL(ncclAllGather)(from, to, count, type, comm, stream));
}
PUBLIC int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream) {
  note_call(K_SEND, count, type, 0, peer, comm, stream);
  return WATCHED(ncclSend, comm, REAL(ncclSend)(from, count, type, peer, comm, stream));
}
PUBLIC int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream) {
  note_call(K_RECV, count, type, 0, peer, comm, stream);
  return WATCHED(ncclRecv, comm, REAL(ncclRecv)(to, count, type, peer, comm, stream));
}
PUBLIC int ncclAlltoAll(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
  return WATCHED(ncclAlltoAll, comm, REAL(ncclAlltoAll)(from, to, count, type, comm, stream));
}
PUBLIC int ncclGather(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
  return WATCHED(ncclGather, comm, REAL(ncclGather)(from, to, count, type, root, comm, stream));
}
PUBLIC int ncclScatter(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
  return WATCHED(ncclScatter, comm, REAL(ncclScatter)(from, to, count, type, root, comm, stream));
}

PUBLIC int ncclGroupStart(void) {
  int r = REAL(ncclGroupStart)();
  if (!nested && r == SUCCESS) group_depth++;
  return r;
}
static void *group_comm(void) { return group_count ? group[0].handle : NULL; }
PUBLIC int ncclGroupEnd(void) {
  void *first = group_comm();
  if (!nested && group_depth && --group_depth == 0) close_group();
  return WATCHED(ncclGroupEnd, first, REAL(ncclGroupEnd)());
}
PUBLIC int ncclGroupSimulateEnd(void *estimate) {
  if (!nested && group_depth && --group_depth == 0) group_count = 0; // nothing runs
  return WATCHED(ncclGroupSimulateEnd, NULL, REAL(ncclGroupSimulateEnd)(estimate));
}

PUBLIC int ncclCommInitRank(void **comm, int ranks, unique_id id, int rank) {
  int r = WATCHED(ncclCommInitRank, NULL, REAL(ncclCommInitRank)(comm, ranks, id, rank));
  if (!nested && (r == SUCCESS || r == IN_PROGRESS)) learn(*comm, mix(SEED, &id, sizeof id), rank, ranks);
  return r;
}
PUBLIC int ncclCommInitRankConfig(void **comm, int ranks, unique_id id, int rank, void *config) {
  int r = WATCHED(ncclCommInitRankConfig, NULL, REAL(ncclCommInitRankConfig)(comm, ranks, id, rank, config));
  if (!nested && (r == SUCCESS || r == IN_PROGRESS)) learn(*comm, mix(SEED, &id, sizeof id), rank, ranks);
  return r;
}
PUBLIC int ncclCommInitRankScalable(void **comm, int ranks, int rank, int count, unique_id *ids, void *config) {
  int r = WATCHED(ncclCommInitRankScalable, NULL, REAL(ncclCommInitRankScalable)(comm, ranks, rank, count, ids, config));
  if (!nested && (r == SUCCESS || r == IN_PROGRESS) && count > 0) learn(*comm, mix(SEED, ids, sizeof *ids * (size_t)count), rank, ranks);
  return r;
}
PUBLIC int ncclCommInitAll(void **list, int ranks, const int *devices) {
  int r = WATCHED(ncclCommInitAll, NULL, REAL(ncclCommInitAll)(list, ranks, devices));
  int names[2] = {getpid(), 0};
  static int calls;
  names[1] = __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
  for (int i = 0; !nested && r == SUCCESS && i < ranks; i++) learn(list[i], mix(SEED, names, sizeof names), i, ranks);
  return r;
}
// The parts of a split have the key of their parent, the number of the split among its splits, and the colour. Their ranks are asked for later.
PUBLIC int ncclCommSplit(void *comm, int colour, int key, void **part, void *config) {
  int r = WATCHED(ncclCommSplit, comm, REAL(ncclCommSplit)(comm, colour, key, part, config));
  if (nested || (r != SUCCESS && r != IN_PROGRESS) || !watch_serves()) return r;
  begin();
  struct comm **at = slot_of(comm), *c = at ? *at : NULL;
  uint64_t split = c ? ++c->splits : 0, name = c ? mix(mix(mix(SEED, &c->key, sizeof c->key), &split, sizeof split), &colour, sizeof colour) : 0;
  int ranks = c ? c->ranks : 0;
  end();
  if (colour >= 0 && name) learn(*part, name, -1, ranks);
  return r;
}
PUBLIC int ncclCommUserRank(void *comm, int *rank) { return REAL(ncclCommUserRank)(comm, rank); }
PUBLIC int ncclCommFinalize(void *comm) { return WATCHED(ncclCommFinalize, comm, REAL(ncclCommFinalize)(comm)); }
PUBLIC int ncclCommDestroy(void *comm) {
  int r = WATCHED(ncclCommDestroy, comm, REAL(ncclCommDestroy)(comm));
  if (!nested) forget(comm);
  return r;
}
PUBLIC int ncclCommAbort(void *comm) {
  if (!nested) off(comm);
  int r = WATCHED(ncclCommAbort, comm, REAL(ncclCommAbort)(comm));
  if (!nested) forget(comm);
  return r;
}

void *call_hook(const char *name, void *found) {
#define HOOK(f) (void *)f,
  static void *const hooks[ENTRY_POINTS] = {CALLS(HOOK)};
  if (strncmp(name, "nccl", 4)) return NULL;
  for (int i = 0; i < ENTRY_POINTS; i++)
    if (!strcmp(names[i], name)) {
      real[i] = found;
      return hooks[i];
    }
  return NULL;
}
