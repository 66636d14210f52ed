// SPDX-License-Identifier: Apache-2.0
// Registered buffers of ranks of one host. Without slots between them the sender writes into the receiver's user buffer, or the receiver reads from the
// sender's. Counters and steps are those of slots. The end whose buffer is used puts its address into the connection's exchange word, as the other end
// maps it (NCCL's host code has that address), and the other end takes it out.
#include "play.h"

enum { P2P_WRITE = 1, P2P_READ = 2, RANKS_OF_HOST_MAX = 64 };

static int mode_of(const struct link *l) { return (int)get(l->conn, CONN_flags) & (P2P_WRITE | P2P_READ); }
static void open_exchange(struct link *l, enum direct d) {
  l->direct = d;
  l->exchange = known(get(l->conn, CONN_ptrExchange), sizeof(uint64_t), "conn.ptrExchange");
}
static void set_user(struct link *l, char *user, const char *what) {
  l->user = known((uint64_t)(uintptr_t)user, 1, what);
  l->user_room = room_at(user);
}

void direct_p2p(struct link *l, char *user) {
  int mode = mode_of(l);
  if (!mode) play_refuse("channel %d: a registered message to rank %d over a connection that is not P2P", l->channel, l->peer);
  open_exchange(l, mode & P2P_WRITE ? WRITES : READS);
  // The work names the buffer of the end that does not copy by the address at which the other end maps it.
  l->offers = (l->direct == READS) == l->sends;
  if (l->offers) l->offered = (uint64_t)(uintptr_t)user;
}

void direct_collective(struct prim *p, const struct play *k, const char *work, const struct part *part) {
  if (!get(work, COLL_regUsed)) return;
  if (get(work, COLL_direct) & P2P_READ) play_refuse("a collective that reads registered buffers; set NCCL_LOCAL_REGISTER=0 and NCCL_GRAPH_REGISTER=0");
  uint64_t offset = get(work, COLL_recvbuffOffset), addresses = get(work, COLL_recvbuffRmtAddrs);
  const int *places = known(get(k->comm, COMM_rankToLocalRank), sizeof(int) * (size_t)k->ranks, "comm.rankToLocalRank");
  const struct link *writer = NULL;
  for (int i = 0; i < p->receives; i++) {
    struct link *l = &p->in[i];
    if (!mode_of(l)) continue;
    // A tree's ranks of one host are a chain, so NCCL has one of them at most.
    if (writer) play_refuse("channel %d: ranks %d and %d would write into the same output", l->channel, writer->peer, l->peer);
    writer = l;
    open_exchange(l, WRITES);
    int place = places[l->peer];
    if (place < 0 || place >= RANKS_OF_HOST_MAX) play_refuse("channel %d: rank %d has place %d in its host", l->channel, l->peer, place);
    l->offers = 1;
    l->offered = offset;
    l->base = known(addresses + sizeof(uint64_t) * (size_t)place, sizeof(uint64_t), "work.recvbuffRmtAddrs");
    set_user(l, part->out, "the output of a collective");
  }
  for (int i = 0; i < p->sends; i++)
    if (mode_of(&p->out[i])) open_exchange(&p->out[i], WRITES);
}

void direct_meet(struct prim *p) {
  struct link *all[2 * TREE_CHILDREN];
  int n = 0;
  for (int i = 0; i < p->receives; i++) all[n++] = &p->in[i];
  for (int i = 0; i < p->sends; i++) all[n++] = &p->out[i];
  // All offers first: an offer waits for nothing of this kernel.
  for (int i = 0; i < n; i++) {
    struct link *l = all[i];
    if (l->direct == SLOTS || !l->offers) continue;
    // 2.24 copies the addresses on a stream that the kernel's does not wait for.
    if (l->base) AWAIT(load(l->base), {"waits for NCCL to map its buffer at", l->channel, l->peer, l->step});
    AWAIT(!load(l->exchange), {"waits to give its buffer's address to", l->channel, l->peer, l->step});
    store(l->exchange, l->offered + (l->base ? load(l->base) : 0));
  }
  for (int i = 0; i < n; i++) {
    struct link *l = all[i];
    if (l->direct == SLOTS || l->offers) continue;
    AWAIT(load(l->exchange), {"waits for the buffer's address of", l->channel, l->peer, l->step});
    set_user(l, (char *)(uintptr_t)load(l->exchange), "a registered buffer of a peer");
    store(l->exchange, 0);
  }
}

void direct_leave(struct prim *p) {
  for (int i = 0; i < p->sends; i++) {
    struct link *l = &p->out[i];
    if (l->direct == READS) AWAIT(load(l->head) >= l->step, {"waits until its buffer is read by", l->channel, l->peer, l->step});
  }
}

// NULL: nothing is to be copied at this end.
char *direct_at(const struct link *l, int64_t place, size_t bytes) {
  if (!l->user || !bytes) return NULL;
  if (place < 0 || (size_t)place > l->user_room || bytes > l->user_room - (size_t)place)
    play_refuse("channel %d: %zu bytes at %lld leave the registered buffer of rank %d", l->channel, bytes, (long long)place, l->peer);
  return l->user + place;
}
