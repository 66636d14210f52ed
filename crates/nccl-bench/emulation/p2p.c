// SPDX-License-Identifier: Apache-2.0
// Send and receive: a batch of ncclDevWorkP2p. Every work holds one send and one receive; each is cut into parts, one per channel, and each
// part of this channel is one fiber, as it is one group of warps on a GPU.
#include "play.h"
#include <stdlib.h>
#include <string.h>

enum { CONNECTION = 1, PART_UNIT = 4096, FIRST_PLAIN_PARTS = 22800, REGISTERED_CHUNK = 1 << 30 };
struct transfer { const struct play *k; char *channel_at; int channel, sends, peer, *left, registered; enum protocol protocol; char *address; size_t bytes, chunk; };

static void transfer_run(void *argument) {
  struct transfer *t = argument;
  struct prim p = {.receives = !t->sends, .sends = t->sends, .protocol = t->protocol, .slices = 1, .steps = 1, .op = {.element = U8, .bytes = 1}};
  struct link *l = t->sends ? &p.out[0] : &p.in[0];
  link_open(l, t->k, t->channel_at, t->channel, t->peer, t->sends, CONNECTION, t->protocol);
  p.step_elements = l->step_bytes;
  if (t->registered) direct_p2p(l, t->address);
  // The address that was offered is one of the other end.
  char *address = l->offers ? NULL : t->bytes ? known((uint64_t)(uintptr_t)t->address, t->bytes, t->sends ? "the buffer of a send" : "the buffer of a receive") : t->address;
  prim_begin(&p);
  size_t at = 0;
  do { // an empty message is one empty step
    size_t now = t->bytes - at < t->chunk ? t->bytes - at : t->chunk;
    prim_do(&p, (struct move){.from = t->sends && address ? address + at : NULL, .to = t->sends || !address ? NULL : address + at, .elements = (int64_t)now, .receive = !t->sends, .send = t->sends, .place = (int64_t)at});
    at += now;
  } while (at < t->bytes && !fiber_aborted());
  prim_end(&p);
  --*t->left;
  free(t);
}

// A size as an 8-bit float: 3 bits of fraction, 5 of exponent.
static size_t u32_of_fp8(uint64_t code) {
  unsigned exponent = (unsigned)code >> 3, fraction = (unsigned)code & 7;
  return exponent ? (size_t)(fraction | 8) << (exponent - 1) : fraction;
}

// The bytes of one part, in units of 4 KiB.
static void part_of(size_t parts, size_t part, size_t bytes, size_t *begin, size_t *end) {
  size_t unit = ((bytes + parts - 1) / parts + PART_UNIT - 1) / PART_UNIT * PART_UNIT;
  *begin = part * unit < bytes ? part * unit : bytes;
  *end = (part + 1) * unit < bytes ? (part + 1) * unit : bytes;
}
static unsigned reversed(unsigned part, unsigned parts) {
  unsigned r = 0;
  for (unsigned bit = 1; bit < parts; bit *= 2, part >>= 1) r = r * 2 + (part & 1);
  return r;
}
// Until 2.27 consecutive channels have parts in bit-reversed order.
static int parts_are_reversed(void) { return (layout_version() < FIRST_PLAIN_PARTS) != (config()->play == PLAY_WRONG_PARTS); }

static void add(const struct play *k, int channel, char *channel_at, const char *work, int sends, unsigned part, int *left) {
  unsigned parts = (unsigned)get(work, sends ? P2P_nSendChannels : P2P_nRecvChannels);
  if (part >= parts) return;
  struct transfer *t = malloc(sizeof *t);
  if (!t) play_refuse("no memory for a transfer");
  size_t bytes = get(work, sends ? P2P_sendBytes : P2P_recvBytes), begin, end;
  part_of(parts, part, bytes, &begin, &end);
  *t = (struct transfer){
    .k = k, .channel_at = channel_at, .channel = channel, .sends = sends, .left = left,
    .peer = (int)(int32_t)get(work, sends ? P2P_sendRank : P2P_recvRank),
    .protocol = get(work, sends ? P2P_sendProtoLL : P2P_recvProtoLL) ? LL : SIMPLE,
    .bytes = end - begin, .chunk = u32_of_fp8(get(work, sends ? P2P_sendChunkSize_u32fp8 : P2P_recvChunkSize_u32fp8))};
  if (!t->chunk) play_refuse("channel %d: a chunk of 0 bytes to rank %d", channel, t->peer);
  t->address = (char *)(uintptr_t)get(work, sends ? P2P_sendAddr : P2P_recvAddr) + begin;
  t->registered = t->protocol == SIMPLE && get(work, sends ? P2P_sendIpcReg : P2P_recvIpcReg);
  if (t->registered && get(k->comm, COMM_isAllNvlink)) t->chunk = REGISTERED_CHUNK;
  ++*left;
  fiber_new(transfer_run, t);
}

void p2p_batch(const struct play *k, int channel, char *channel_at, const char *works, int count) {
  int left = 0;
  for (int i = 0; i < count; i++) {
    const char *work = works + (size_t)i * size_of(P2P);
    if (get(work, P2P_sendNetReg) || get(work, P2P_recvNetReg))
      play_refuse("messages whose NICs read registered buffers; set NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0");
    unsigned parts = (unsigned)get(work, P2P_nP2pChannels);
    if (!parts || parts & (parts - 1) || parts > CHANNELS_MAX) play_refuse("channel %d: a message in %u parts", channel, parts);
    unsigned part = (unsigned)(channel - (int)get(work, P2P_channelBase)) & (parts - 1);
    if (parts_are_reversed()) part = reversed(part, parts);
    if ((int)(int32_t)get(work, P2P_sendRank) == k->rank) { // a message to itself: a copy
      size_t begin, end, bytes = get(work, P2P_sendBytes);
      unsigned sent = (unsigned)get(work, P2P_nSendChannels);
      if (part >= sent) continue;
      part_of(sent, part, bytes, &begin, &end);
      if (begin == end) continue;
      char *to = known(get(work, P2P_recvAddr) + begin, end - begin, "the buffer of a receive");
      memmove(to, known(get(work, P2P_sendAddr) + begin, end - begin, "the buffer of a send"), end - begin);
      trace_write(to, end - begin, channel, k->rank, 0);
      continue;
    }
    add(k, channel, channel_at, work, 0, part, &left);
    add(k, channel, channel_at, work, 1, part, &left);
  }
  while (left) fiber_yield((struct waits){NULL, channel, 0, 0});
}
