// SPDX-License-Identifier: Apache-2.0
// A launched kernel: its arguments (ncclDevKernelArgs), the batches behind them (ncclDevWorkBatch), and for each batch the function that its
// number names. Every channel in the mask is one fiber, which walks its own chain of batches.
#include "play.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORK_P2P = 0, WORK_COLL = 1, WORK_COLL_REG = 2, IN_ARGS = 0 };
struct block { const struct play *k; int channel, batch; };

// ---- which function: the inverse of NCCL's table ncclDevFuncRowToId
static const int *rows;
static size_t row_count;
void play_functions(const int *table, size_t count) { rows = table; row_count = count; }

// Rows stand in this order: send/recv; all-gather by algorithm and protocol; broadcast by protocol; from 2.29 grouped broadcasts; all-reduce by
// operation, type, algorithm and protocol; reduce by operation, type and protocol; reduce-scatter like all-reduce; an end mark.
enum { TYPES = 12, REDUCTIONS = 5, ALL_REDUCE_ALGORITHMS = 6, ROWS_2_24 = 1997, ROWS_2_29 = 2000 };
static const int gather_algorithms[4] = {1, 2, 4, 6}; // ring, CollNet direct, NVLS, PAT
static int find(int id, struct function *f) {
  size_t row = 1;
#define ROW(C, O, T, A, P) if (rows[row++] == id) { *f = (struct function){C, A, (enum protocol)(P), {(enum reduction)(O), (enum element)(T), element_bytes((enum element)(T)), 0}}; return 1; }
  for (int a = 0; a < 4; a++)
    for (int p = 0; p < PROTOCOLS; p++) ROW(ALL_GATHER, SUM, I8, gather_algorithms[a], p)
  for (int p = 0; p < PROTOCOLS; p++) ROW(BROADCAST, SUM, I8, RING, p)
  if (row_count == ROWS_2_29) row += PROTOCOLS;
  for (int o = 0; o < REDUCTIONS; o++)
    for (int t = 0; t < TYPES; t++)
      for (int a = 0; a < ALL_REDUCE_ALGORITHMS; a++)
        for (int p = 0; p < PROTOCOLS; p++) ROW(ALL_REDUCE, o, t, a, p)
  for (int o = 0; o < REDUCTIONS; o++)
    for (int t = 0; t < TYPES; t++)
      for (int p = 0; p < PROTOCOLS; p++) ROW(REDUCE, o, t, RING, p)
  for (int o = 0; o < REDUCTIONS; o++)
    for (int t = 0; t < TYPES; t++)
      for (int a = 0; a < 4; a++)
        for (int p = 0; p < PROTOCOLS; p++) ROW(REDUCE_SCATTER, o, t, gather_algorithms[a], p)
  return 0;
}

static struct function function_of(int id) {
  static const char *const collectives[COLLECTIVES] = {"broadcast", "reduce", "all-gather", "reduce-scatter", "all-reduce"};
  static const char *const algorithms[] = {"tree", "ring", "CollNet direct", "CollNet chain", "NVLS", "NVLS tree", "PAT"};
  struct function f;
  if (!rows || (row_count != ROWS_2_24 && row_count != ROWS_2_29)) play_refuse("a library whose table of functions has %zu rows (known: %d and %d)", row_count, ROWS_2_24, ROWS_2_29);
  if (!find(id, &f)) play_refuse("function %d, which is not in NCCL's table", id);
  if (f.algorithm > RING || (f.algorithm == TREE && f.collective != ALL_REDUCE))
    play_refuse("%s by %s; set NCCL_ALGO=Ring,Tree", collectives[f.collective], algorithms[f.algorithm]);
  if (f.collective != BROADCAST && f.collective != ALL_GATHER) op_check(&f.op);
  return f;
}

static void coll_play(const struct play *k, int channel, char *channel_at, const char *work, int id) {
  struct function f = function_of(id);
  if (get(work, COLL_netRegUsed))
    play_refuse("a collective whose NICs read registered buffers; set NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0");
  f.op.argument = get(work, COLL_redOpArg);
  if (get(work, COLL_redOpArgIsPtr)) memcpy(&f.op.argument, known(f.op.argument, f.op.bytes, "the factor of a reduction"), f.op.bytes);
  (f.algorithm == TREE ? tree_play : ring_play)(k, channel, channel_at, work, &f);
}

// Copies the works of one batch, and of those that extend it, behind each other. Returns the index of the next batch, or -1.
static int collect(const struct play *k, int batch, int *type, int *id, char **works, int *count) {
  uint64_t mask = get(k->args, ARGS_workMask), buffer = get(k->args, ARGS_workBuf);
  int in_args = get(k->args, ARGS_workStorageType) == IN_ARGS;
  for (int extends = 1; extends;) {
    size_t at = size_of(ARGS) + (size_t)batch * size_of(BATCH);
    if (batch < 0 || at + size_of(BATCH) > k->args_bytes) play_refuse("batch %d, which lies behind the arguments of %zu bytes", batch, k->args_bytes);
    const char *b = k->args + at;
    *type = (int)get(b, BATCH_workType);
    *id = (int)get(b, BATCH_funcId);
    if (*type > WORK_COLL_REG) play_refuse("work of type %d (grouped broadcasts: set NCCL_ALLGATHERV_ENABLE=0)", *type);
    size_t bytes = size_of(*type == WORK_P2P ? P2P : *type == WORK_COLL ? COLL : COLL_REG);
    uint64_t set = get(b, BATCH_offsetBitset), base = get(b, BATCH_offsetBase);
    for (uint64_t i = 0; i < 64; i++) {
      if (!(set >> i & 1)) continue;
      if (*count == WORKS_MAX) play_refuse("more than %d works in one batch", WORKS_MAX);
      char *grown = realloc(*works, bytes * (size_t)(*count + 1));
      if (!grown) play_refuse("no memory for %d works", *count);
      *works = grown;
      uint64_t offset = base + i * bytes;
      const char *from;
      if (!in_args) from = known(buffer + (offset & mask), bytes, "args.workBuf");
      else if (offset <= k->args_bytes && bytes <= k->args_bytes - offset) from = k->args + offset;
      else play_refuse("work at %llu behind the arguments of %zu bytes", (unsigned long long)offset, k->args_bytes);
      memcpy(grown + bytes * (size_t)(*count)++, from, bytes);
    }
    int jump = (int)get(b, BATCH_nextJump);
    extends = (int)get(b, BATCH_nextExtends);
    if (!jump) return -1;
    batch += jump;
  }
  return batch;
}

// What profilers read of a work: its number and the time, when it starts and when it ends (ncclDevProfiler: 64 entries of two words per channel).
static void profile(const struct play *k, int channel, const char *work, int type, uint64_t number, enum field when) {
  enum { ENTRIES = 64, ENTRY_WORDS = 2 };
  enum field wanted = type == WORK_P2P ? P2P_profilerEnabled : COLL_profilerEnabled;
  if (!layout_has(wanted) || !layout_has(when) || !get(work, wanted)) return;
  size_t bytes = ENTRIES * ENTRY_WORDS * sizeof(uint64_t);
  uint64_t *entries = known(get(k->comm, when) + (uint64_t)channel * bytes, bytes, "comm.workStarted"), *entry = entries + number % ENTRIES * ENTRY_WORDS;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  entry[1] = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
  store((char *)entry, number);
}

static void block_run(void *argument) {
  struct block *b = argument;
  char *channel_at = b->k->channels + (size_t)b->channel * size_of(CHANNEL);
  uint64_t number = layout_has(CHANNEL_workCounter) ? get(channel_at, CHANNEL_workCounter) : 0;
  while (b->batch >= 0 && !fiber_aborted()) {
    char *works = NULL;
    int type = 0, id = 0, count = 0;
    b->batch = collect(b->k, b->batch, &type, &id, &works, &count);
    size_t bytes = size_of(type == WORK_P2P ? P2P : type == WORK_COLL ? COLL : COLL_REG);
    for (int i = 0; i < count; i++) profile(b->k, b->channel, works + (size_t)i * bytes, type, number + (uint64_t)i + 1, COMM_workStarted);
    if (type == WORK_P2P) p2p_batch(b->k, b->channel, channel_at, works, count);
    else
      for (int i = 0; i < count && !fiber_aborted(); i++) coll_play(b->k, b->channel, channel_at, works + (size_t)i * bytes, id);
    for (int i = 0; i < count; i++) profile(b->k, b->channel, works + (size_t)i * bytes, type, number + (uint64_t)i + 1, COMM_workCompleted);
    number += (uint64_t)count;
    free(works);
  }
  if (layout_has(CHANNEL_workCounter)) put(channel_at, CHANNEL_workCounter, number);
  free(b);
}

void play_kernel(const char *name, const char *args, size_t bytes) {
  if (!name || !strstr(name, "ncclDevKernel_")) play_refuse("kernel %s", name ? name : "without a name");
  layout_need();
  if (bytes < size_of(ARGS)) play_refuse("%s with arguments of %zu bytes", name, bytes);
  struct play k = {.args = args, .args_bytes = bytes};
  k.comm = known(get(args, ARGS_comm), size_of(COMM), "args.comm");
  k.rank = (int)(int32_t)get(k.comm, COMM_rank);
  k.ranks = (int)(int32_t)get(k.comm, COMM_nRanks);
  if (k.ranks < 1 || k.ranks > RANKS_MAX || k.rank < 0 || k.rank >= k.ranks) play_refuse("rank %d of %d; the layout does not fit the library", k.rank, k.ranks);
  uint64_t mask = get(args, ARGS_channelMask), abort_flag = get(k.comm, COMM_abortFlag);
  k.channels = known(get(k.comm, COMM_channels), size_of(CHANNEL), "comm.channels");
  int index = 0;
  fibers_begin();
  for (int channel = 0; channel < CHANNELS_MAX; channel++) {
    if (!(mask >> channel & 1)) continue;
    known((uint64_t)(uintptr_t)k.channels + (uint64_t)channel * size_of(CHANNEL), size_of(CHANNEL), "comm.channels");
    struct block *b = malloc(sizeof *b);
    if (!b) play_refuse("no memory for a channel");
    *b = (struct block){&k, channel, index++};
    fiber_new(block_run, b);
  }
  fibers_run(abort_flag ? known(abort_flag, sizeof(uint32_t), "comm.abortFlag") : NULL, k.rank);
}
