// SPDX-License-Identifier: Apache-2.0
// Collectives along a ring (ncclRing): data move from `prev` to `next`. `index` is the rank's place in the ring of the channel, counted from
// rank 0; `userRanks` lists the ranks from this rank on.
//
// Order of a sum: the piece with number k (0 to n-1) of an all-reduce begins with the rank at place k+1 and ends with the rank at place k; each
// rank adds its input to what it receives. A reduce-scatter of rank r ends at r; a reduce ends at the root.
#include "play.h"

// A block's own share of the elements (ncclDevWorkColl's counts for the first, the middle and the last channel).
struct part coll_part(const char *work, int channel, const struct function *f) {
  static const size_t grain_bytes[PROTOCOLS] = {16, 1920, 512};
  int64_t low = (int64_t)get(work, COLL_channelLo), high = (int64_t)get(work, COLL_channelHi), middles = high > low ? high - low - 1 : 0;
  int64_t of_low = (int64_t)get(work, COLL_countLo), of_middle = (int64_t)get(work, COLL_countMid), of_high = (int64_t)get(work, COLL_countHi);
  if (channel < low || channel > high) play_refuse("channel %d works on a collective of channels %d to %d", channel, (int)low, (int)high);
  const int64_t most = INT64_MAX / CHANNELS_MAX / 16;
  if (of_low < 0 || of_middle < 0 || of_high < 0 || of_low > most || of_middle > most || of_high > most) play_refuse("channel %d: an invalid number of elements", channel);
  struct part p = {.total = of_low + of_middle * middles + of_high};
  uint64_t grains;
  if (channel == low) p.at = 0, p.count = of_low, grains = get(work, COLL_chunkGrainsLo);
  else if (channel == high) p.at = of_low + middles * of_middle, p.count = of_high, grains = get(work, COLL_chunkGrainsHi);
  else p.at = of_low + (channel - low - 1) * of_middle, p.count = of_middle, grains = get(work, COLL_chunkGrainsMid);
  p.chunk = (int64_t)(grains * (grain_bytes[f->protocol] / f->op.bytes));
  if (p.chunk <= 0 && p.count > 0) play_refuse("channel %d: a chunk of 0 elements", channel);
  p.in = (char *)(uintptr_t)get(work, COLL_sendbuff);
  p.out = (char *)(uintptr_t)get(work, COLL_recvbuff);
  return p;
}

struct ring { const struct play *k; const struct function *f; struct part part; struct prim prim; const int *users; int place, root; };
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static char *in_at(const struct ring *r, int64_t element) { return r->part.in + element * (int64_t)r->f->op.bytes; }
static char *out_at(const struct ring *r, int64_t element) { return r->part.out + element * (int64_t)r->f->op.bytes; }

// `place`: the element of the output, of this rank and of its neighbours, where registered buffers get the data.
static int64_t bytes_at(const struct ring *r, int64_t place) { return place * (int64_t)r->f->op.bytes; }
static void send(struct ring *r, const char *from, char *to, int64_t place, int64_t n) { prim_do(&r->prim, (struct move){from, to == from ? NULL : to, n, 0, 1, 0, bytes_at(r, place)}); }
static void receive_reduce_send(struct ring *r, int64_t at, char *to, int64_t n, int final) { prim_do(&r->prim, (struct move){in_at(r, at), to, n, 1, 1, final, bytes_at(r, at)}); }
static void receive_send(struct ring *r, int64_t at, int64_t n) { prim_do(&r->prim, (struct move){NULL, out_at(r, at), n, 1, 1, 0, bytes_at(r, at)}); }
static void receive(struct ring *r, int64_t at, int64_t n) { prim_do(&r->prim, (struct move){NULL, out_at(r, at), n, 1, 0, 0, bytes_at(r, at)}); }
static void receive_reduce(struct ring *r, const char *from, char *to, int64_t n) { prim_do(&r->prim, (struct move){from, to, n, 1, 0, 1, 0}); }

static void all_reduce(struct ring *r) {
  int64_t n = r->k->ranks, round = n * r->part.chunk;
  for (int64_t done = 0; done < r->part.count && !fiber_aborted(); done += round) {
    int64_t rest = r->part.count - done, chunk = r->part.chunk;
    if (rest < round) { // the last round: equal pieces in units of 16 bytes
      int64_t unit = 16 / (int64_t)r->f->op.bytes;
      chunk = ((rest + n - 1) / n + unit - 1) / unit * unit;
    }
    for (int64_t step = 1; step <= 2 * n - 1; step++) {
      // Steps 1 to n reduce, n+1 to 2n-1 pass the results on.
      int64_t piece = (r->place + 2 * n - step) % n;
      int64_t at = r->part.at + done + piece * chunk, size = least(chunk, rest - piece * chunk);
      if (size <= 0) size = 0, at = r->part.at; // an empty piece touches no memory
      if (step == 1) send(r, in_at(r, at), NULL, at, size);
      else if (step < n) receive_reduce_send(r, at, NULL, size, 0);
      else if (step == n) receive_reduce_send(r, at, out_at(r, at), size, 1);
      else if (step < 2 * n - 1) receive_send(r, at, size);
      else receive(r, at, size);
    }
  }
}

static void all_gather(struct ring *r, int64_t at, int64_t n) {
  int ranks = r->k->ranks;
  int64_t total = r->part.total;
  send(r, in_at(r, at), out_at(r, at + r->users[0] * total), at + r->users[0] * total, n);
  for (int j = 1; j < ranks - 1; j++) receive_send(r, at + r->users[ranks - j] * total, n);
  receive(r, at + r->users[1] * total, n);
}
static void reduce_scatter(struct ring *r, int64_t at, int64_t n) {
  int ranks = r->k->ranks;
  int64_t total = r->part.total;
  send(r, in_at(r, at + r->users[ranks - 1] * total), NULL, 0, n);
  for (int j = 2; j < ranks; j++) receive_reduce_send(r, at + r->users[ranks - j] * total, NULL, n, 0);
  receive_reduce(r, in_at(r, at + r->users[0] * total), out_at(r, at), n);
}
static void broadcast(struct ring *r, int64_t at, int64_t n) {
  if (r->users[0] == r->root) send(r, in_at(r, at), out_at(r, at), at, n);
  else if (r->users[1] == r->root) receive(r, at, n);
  else receive_send(r, at, n);
}
static void reduce(struct ring *r, int64_t at, int64_t n) {
  if (r->users[r->k->ranks - 1] == r->root) send(r, in_at(r, at), NULL, at, n);
  else if (r->users[0] == r->root) receive_reduce(r, in_at(r, at), out_at(r, at), n);
  else receive_reduce_send(r, at, NULL, n, 0);
}

// The buffers that the collective reads and writes must be memory of the simulated GPU.
static void check_buffers(const struct ring *r) {
  size_t bytes = (size_t)r->part.total * r->f->op.bytes, all = bytes * (size_t)r->k->ranks;
  enum collective c = r->f->collective;
  int at_root = r->users[0] == r->root;
  if (!bytes) return;
  if (c != BROADCAST || at_root) known((uint64_t)(uintptr_t)r->part.in, c == REDUCE_SCATTER ? all : bytes, "the input of a collective");
  if (c != REDUCE || at_root) known((uint64_t)(uintptr_t)r->part.out, c == ALL_GATHER ? all : bytes, "the output of a collective");
}

void ring_play(const struct play *k, int channel, char *channel_at, const char *work, const struct function *f) {
  struct ring r = {.k = k, .f = f, .part = coll_part(work, channel, f), .place = (int)(int32_t)get(channel_at, CHANNEL_index), .root = (int)(int32_t)get(work, COLL_root)};
  r.users = known(get(channel_at, CHANNEL_userRanks), sizeof(int) * (size_t)k->ranks, "channel.userRanks");
  for (int i = 0; i < k->ranks; i++)
    if (r.users[i] < 0 || r.users[i] >= k->ranks) play_refuse("channel %d: the ring names rank %d of %d", channel, r.users[i], k->ranks);
  if (r.place < 0 || r.place >= k->ranks) play_refuse("channel %d: place %d in a ring of %d", channel, r.place, k->ranks);
  check_buffers(&r);
  int wide = f->collective != BROADCAST && f->collective != REDUCE;
  r.prim = (struct prim){.receives = 1, .sends = 1, .protocol = f->protocol, .slices = wide ? 2 : 1, .steps = wide ? 2 : 1, .op = f->op};
  link_open(&r.prim.in[0], k, channel_at, channel, (int)(int32_t)get(channel_at, CHANNEL_prev), 0, 0, f->protocol);
  link_open(&r.prim.out[0], k, channel_at, channel, (int)(int32_t)get(channel_at, CHANNEL_next), 1, 0, f->protocol);
  r.prim.step_elements = r.prim.out[0].step_bytes / f->op.bytes;
  direct_collective(&r.prim, k, work, &r.part);
  prim_begin(&r.prim);
  if (f->collective == ALL_REDUCE) all_reduce(&r);
  else
    for (int64_t done = 0; done < r.part.count && !fiber_aborted(); done += r.part.chunk) {
      int64_t at = r.part.at + done, n = least(r.part.chunk, r.part.count - done);
      switch (f->collective) {
      case ALL_GATHER: all_gather(&r, at, n); break;
      case REDUCE_SCATTER: reduce_scatter(&r, at, n); break;
      case BROADCAST: broadcast(&r, at, n); break;
      default: reduce(&r, at, n);
      }
    }
  prim_end(&r.prim);
}
