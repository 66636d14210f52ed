// SPDX-License-Identifier: Apache-2.0
// The player: does on the CPU what a launched NCCL kernel does to memory, so that real bytes move: user buffer -> slots of a connection ->
// NCCL's proxy and network (or a peer's mapped memory) -> slots of the peer -> its user buffer. NCCL itself stays unmodified.
//
// Structures of NCCL are read through offsets that the bench takes from the debug information of the very library (layout.c). Every pointer
// found in them must lie in memory that the emulation gave out; otherwise the run ends with the name of the field.
//
//   launch.c    the arguments of a launch, batches of work, and which function a batch names
//   p2p.c       send and receive            ring.c, tree.c   the collectives
//   simple.c    the protocols: one operation of `struct prim`      ll.c, ll128.c
//   direct.c    registered buffers of ranks of a host, which peers write into or read from
//   reduce.c    sums and other reductions   link.c   one end of a connection
//   pace.c      copies inside a host that take time
//   fiber.c     one coroutine per channel and transfer, and the watchdog
#ifndef LINKWISE_PLAY_H
#define LINKWISE_PLAY_H
#include "emu.h"

// ---- layout.c
enum structure { ARGS, BATCH, P2P, COLL, COLL_REG, COMM, CHANNEL, PEER, CONN, FIFO, STRUCTURES };
#define LAYOUT_FIELDS(X) \
  X(ARGS, comm) X(ARGS, channelMask) X(ARGS, workStorageType) X(ARGS, workMask) X(ARGS, workBuf) \
  X(BATCH, nextJump) X(BATCH, nextExtends) X(BATCH, workType) X(BATCH, funcId) X(BATCH, offsetBase) X(BATCH, offsetBitset) \
  X(P2P, sendAddr) X(P2P, recvAddr) X(P2P, sendBytes) X(P2P, recvBytes) X(P2P, sendRank) X(P2P, recvRank) X(P2P, nP2pChannels) \
  X(P2P, channelBase) X(P2P, nSendChannels) X(P2P, nRecvChannels) X(P2P, sendChunkSize_u32fp8) X(P2P, recvChunkSize_u32fp8) \
  X(P2P, sendProtoLL) X(P2P, recvProtoLL) X(P2P, sendNetReg) X(P2P, recvNetReg) X(P2P, sendIpcReg) X(P2P, recvIpcReg) X(P2P, profilerEnabled) \
  X(COLL, channelLo) X(COLL, channelHi) X(COLL, redOpArgIsPtr) X(COLL, regUsed) X(COLL, netRegUsed) X(COLL, direct) X(COLL, root) X(COLL, recvbuff) \
  X(COLL, recvbuffOffset) X(COLL, recvbuffRmtAddrs) \
  X(COLL, sendbuff) X(COLL, countLo) X(COLL, countMid) X(COLL, countHi) X(COLL, chunkGrainsLo) X(COLL, chunkGrainsMid) \
  X(COLL, chunkGrainsHi) X(COLL, redOpArg) X(COLL, profilerEnabled) \
  X(COMM, rank) X(COMM, nRanks) X(COMM, buffSizes) X(COMM, isAllNvlink) X(COMM, rankToLocalRank) X(COMM, abortFlag) X(COMM, channels) X(COMM, workStarted) X(COMM, workCompleted) \
  X(CHANNEL, peers) X(CHANNEL, prev) X(CHANNEL, next) X(CHANNEL, userRanks) X(CHANNEL, index) X(CHANNEL, up) X(CHANNEL, down) \
  X(CHANNEL, workCounter) \
  X(PEER, send) X(PEER, recv) \
  X(CONN, buffs) X(CONN, tail) X(CONN, head) X(CONN, stepSize) X(CONN, step) X(CONN, connFifo) X(CONN, flags) X(CONN, ptrExchange) \
  X(FIFO, mode) X(FIFO, offset) X(FIFO, size)
#define FIELD_NAME(s, f) s##_##f,
enum field { LAYOUT_FIELDS(FIELD_NAME) FIELDS };

// The largest release's counts, and what hardware and NCCL bound.
enum { CHANNELS_MAX = 64, WORKS_MAX = 1024, RANKS_MAX = 4096, STEPS = 8, TREE_CHILDREN = 3, FIELD_ARRAY_MAX = 4096 };

void layout_need(void);                                   // reads the file on first use; ends the run if it is not valid
void layout_library(const char *path);                    // the library whose offsets are needed
int layout_version(void);                                 // of the library, 22809 is 2.28.9
int layout_has(enum field f);
uint64_t get(const void *structure, enum field f);
void put(void *structure, enum field f, uint64_t value);
char *member(const void *structure, enum field f);        // address of a member
size_t size_of(enum structure s);
// The address, if [address, address + bytes) is memory of the emulation; otherwise the run ends with the name `what`.
void *known(uint64_t address, size_t bytes, const char *what);
size_t room_at(const void *address);                      // bytes from the address to the end of its memory

// ---- fiber.c
struct waits { const char *what; int channel, peer; uint64_t step; };
void fibers_begin(void);                                  // before the first fiber of a kernel
void fiber_new(void (*f)(void *), void *argument);
void fibers_run(const volatile uint32_t *abort_flag, int rank); // until all have ended; the rank is for messages
void fiber_yield(struct waits w);
void fiber_moved(uint64_t bytes);                         // progress, for the watchdog
int fiber_aborted(void);
// Ends the fiber's function if NCCL aborts its communicator.
#define AWAIT(condition, ...) while (!(condition)) { if (fiber_aborted()) return; fiber_yield((struct waits)__VA_ARGS__); }

_Noreturn void play_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- link.c: one end of a connection (ncclConnInfo), for sends or receives
enum protocol { LL, LL128, SIMPLE, PROTOCOLS };
struct link {
  char *conn;                // ncclConnInfo, where the step is kept between kernels
  char *head, *tail;         // counters of steps: read, written
  char *fifo;                // ncclConnFifo[STEPS], or NULL
  char *buffer;              // slots of the protocol
  size_t room;               // bytes from `buffer` to the end of its memory
  size_t step_bytes;         // of a slot
  uint64_t step;
  int channel, peer, sends;
  enum protocol protocol;
  enum direct { SLOTS, WRITES, READS } direct; // the sender writes into the receiver's user buffer, or the receiver reads from the sender's
  char *user;                // that buffer at this end; NULL: not mapped here
  size_t user_room;          // bytes from `user` to the end of its memory
  char *exchange;            // where the ends exchange its address
  int offers;                // boolean: this end gives an address; otherwise it waits for one
  uint64_t offered;          // the address for the other end, from what `base` points at, if it is not NULL
  const char *base;
};
struct play;
void link_open(struct link *l, const struct play *k, const char *channel_at, int channel, int peer, int sends, int index, enum protocol p);
void link_close(struct link *l);
char *link_slot(struct link *l, size_t bytes);            // of the current step
void link_announce(struct link *l, size_t bytes);         // to the proxy that sends the slot
// ---- pace.c: copies inside a host at the rate of a link
double pace_reserve(const struct link *l, size_t bytes);
int pace_passed(double end);
#define PACE(l, bytes) do { double end = pace_reserve(l, bytes); AWAIT(pace_passed(end), {"waits for the link to", (l)->channel, (l)->peer, (l)->step}); } while (0)
static inline uint64_t load(const char *p) { return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE); }
static inline void store(char *p, uint64_t v) { __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELEASE); }
#define READY_TO_SEND(l, n) (load((l)->head) + STEPS >= (l)->step + (uint64_t)(n))

// ---- reduce.c
enum reduction { SUM, PRODUCT, MIN_MAX, SCALED_SUM, SUM_THEN_DIVIDE };
enum element { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, F8E4M3, F8E5M2, ELEMENTS };
struct op { enum reduction reduction; enum element element; size_t bytes; uint64_t argument; };
size_t element_bytes(enum element e);
void op_check(const struct op *o);                        // ends the run if it is not played
void op_scale(const struct op *o, void *to, const void *from, size_t n);             // before an input is used
void op_reduce(const struct op *o, void *to, const void *a, const void *b, size_t n); // to = a (op) b
void op_finish(const struct op *o, void *to, size_t n);   // on the final value
int op_scales(const struct op *o);

// ---- protocols: receive from `receives` links, reduce with `from`, send to `sends` links and write to `to`
struct prim {
  struct link in[TREE_CHILDREN], out[TREE_CHILDREN];
  int receives, sends;
  enum protocol protocol;
  int slices, steps;         // of an operation, Simple only
  size_t step_elements;
  struct op op;
};
struct move { const char *from; char *to; int64_t elements; int receive, send, final; int64_t place; }; // place: in a registered buffer, bytes
void prim_begin(struct prim *p);
void prim_end(struct prim *p);
void prim_do(struct prim *p, struct move m);
void simple_do(struct prim *p, struct move m);
void ll_do(struct prim *p, struct move m);
void ll128_do(struct prim *p, struct move m);
// Value of one piece: `from`, then every received piece in the order of the links.
void fold(const struct op *o, char *to, const char *from, char *const *received, int receives, size_t n, int final);

// ---- direct.c
struct part;
void direct_p2p(struct link *l, char *user);              // of a message; `user`: the address that the work names
void direct_collective(struct prim *p, const struct play *k, const char *work, const struct part *part); // of all links that allow it
void direct_meet(struct prim *p);                         // exchanges the addresses
void direct_leave(struct prim *p);                        // waits until peers have read what they read
char *direct_at(const struct link *l, int64_t place, size_t bytes);

// ---- launch.c, p2p.c, ring.c, tree.c
enum collective { BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, COLLECTIVES };
enum algorithm { TREE, RING };
struct play { const char *args; size_t args_bytes; char *comm, *channels; int rank, ranks; };
struct function { enum collective collective; int algorithm; enum protocol protocol; struct op op; };
void play_functions(const int *table, size_t count);                   // the library's ncclDevFuncRowToId
void play_kernel(const char *name, const char *args, size_t bytes);    // returns when the kernel has ended
void p2p_batch(const struct play *k, int channel, char *channel_at, const char *works, int count);
void ring_play(const struct play *k, int channel, char *channel_at, const char *work, const struct function *f);
void tree_play(const struct play *k, int channel, char *channel_at, const char *work, const struct function *f);
// The part of a collective that one channel has.
struct part { int64_t total, at, count, chunk; char *in, *out; };
struct part coll_part(const char *work, int channel, const struct function *f);

// ---- trace.c: which step wrote a byte of a user buffer
void trace_write(const void *to, size_t bytes, int channel, int peer, uint64_t step);
#endif
