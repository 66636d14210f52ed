// SPDX-License-Identifier: Apache-2.0
// One end of a connection between two ranks on one channel (ncclConnInfo), and its slots. Sender and receiver share eight slots and two
// counters: `tail` counts the steps that were written, `head` those that were read. Between a GPU and a proxy of NCCL the array of
// ncclConnFifo tells the proxy the bytes of a slot, and the kernel where a slot lies if the buffer is shared between connections.
#include "play.h"

enum { MODE_NORMAL = 0, MODE_OFFSET = 1 };

void link_open(struct link *l, const struct play *k, const char *channel_at, int channel, int peer, int sends, int index, enum protocol p) {
  if (peer < 0 || peer >= k->ranks) play_refuse("channel %d names rank %d of %d", channel, peer, k->ranks);
  uint64_t peers = get(channel_at, CHANNEL_peers), at;
  char *slot = known(peers + (uint64_t)peer * sizeof at, sizeof at, "channel.peers");
  __builtin_memcpy(&at, slot, sizeof at);
  char *both = known(at, size_of(PEER), "a peer of a channel");
  *l = (struct link){.conn = member(both, sends ? PEER_send : PEER_recv) + (size_t)index * size_of(CONN), .channel = channel, .peer = peer, .sends = sends, .protocol = p};
  uint64_t head = get(l->conn, CONN_head), tail = get(l->conn, CONN_tail), fifo = get(l->conn, CONN_connFifo), buffer;
  __builtin_memcpy(&buffer, member(l->conn, CONN_buffs) + sizeof buffer * (size_t)p, sizeof buffer);
  l->head = known(head, sizeof(uint64_t), "conn.head");
  l->tail = tail || p == SIMPLE ? known(tail, sizeof(uint64_t), "conn.tail") : NULL;
  l->fifo = fifo ? known(fifo, STEPS * size_of(FIFO), "conn.connFifo") : NULL;
  l->buffer = known(buffer, 1, "conn.buffs");
  l->room = room_at(l->buffer);
  l->step = get(l->conn, CONN_step);
  int bytes;
  if (p == SIMPLE) {
    l->step_bytes = get(l->conn, CONN_stepSize);
  } else {
    __builtin_memcpy(&bytes, member(k->comm, COMM_buffSizes) + sizeof bytes * (size_t)p, sizeof bytes);
    l->step_bytes = bytes > 0 ? (size_t)bytes / STEPS : 0;
  }
  if (!l->step_bytes || l->step_bytes > l->room) play_refuse("channel %d: a slot of %zu bytes to rank %d does not fit its buffer of %zu", channel, l->step_bytes, peer, l->room);
}

void link_close(struct link *l) { put(l->conn, CONN_step, l->step); }

char *link_slot(struct link *l, size_t bytes) {
  size_t offset = l->step % STEPS * l->step_bytes;
  if (l->fifo && l->protocol == SIMPLE) {
    char *entry = l->fifo + l->step % STEPS * size_of(FIFO);
    int mode = (int)get(entry, FIFO_mode);
    if (mode == MODE_OFFSET) offset = get(entry, FIFO_offset);
    else if (mode != MODE_NORMAL) play_refuse("a connection that reads user buffers directly (mode %d of a registered buffer)", mode);
  }
  if (offset > l->room || bytes > l->room - offset)
    play_refuse("channel %d: %zu bytes at offset %zu leave the buffer of %zu bytes to rank %d", l->channel, bytes, offset, l->room, l->peer);
  return l->buffer + offset;
}

void link_announce(struct link *l, size_t bytes) {
  if (!l->fifo) return;
  int64_t n = (int64_t)bytes;
  __atomic_store_n((int64_t *)member(l->fifo + l->step % STEPS * size_of(FIFO), FIFO_size), n, __ATOMIC_RELEASE);
}
