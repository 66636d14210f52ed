// SPDX-License-Identifier: Apache-2.0
// What all protocols share, and the protocol Simple: slots of data, announced by counters. An operation has `slices` slices of `steps` steps.
#include "play.h"
#include <string.h>

void fold(const struct op *o, char *to, const char *from, char *const *received, int receives, size_t n, int final) {
  int done = 0;
  if (from && receives && !op_scales(o)) {
    op_reduce(o, to, from, received[0], n);
    done = 1;
  } else if (from) {
    op_scale(o, to, from, n);
  } else {
    memmove(to, received[0], n * o->bytes);
    done = 1;
  }
  for (; done < receives; done++) op_reduce(o, to, to, received[done], n);
  if (final) op_finish(o, to, n);
}

// Steps start at a whole operation, and the receiver tells the sender that the steps skipped are free.
void prim_begin(struct prim *p) {
  uint64_t unit = p->protocol == SIMPLE ? (uint64_t)(p->slices * p->steps) : 1;
  for (int i = 0; i < p->receives; i++) {
    p->in[i].step = (p->in[i].step + unit - 1) / unit * unit;
    if (p->protocol == SIMPLE) store(p->in[i].head, p->in[i].step);
  }
  for (int i = 0; i < p->sends; i++) p->out[i].step = (p->out[i].step + unit - 1) / unit * unit;
  direct_meet(p);
}
void prim_end(struct prim *p) {
  direct_leave(p);
  for (int i = 0; i < p->receives; i++) link_close(&p->in[i]);
  for (int i = 0; i < p->sends; i++) link_close(&p->out[i]);
}
void prim_do(struct prim *p, struct move m) {
  if (m.elements < 0) m.elements = 0;
  if (p->protocol == LL) ll_do(p, m);
  else if (p->protocol == LL128) ll128_do(p, m);
  else simple_do(p, m);
}

void simple_do(struct prim *p, struct move m) {
  size_t element = p->op.bytes, n = (size_t)m.elements, at = 0, slices = (size_t)p->slices;
  size_t slice = (n + 16 * slices - 1) / (16 * slices) * 16, least = p->step_elements * (size_t)p->steps / 32;
  if (slice < least) slice = least;
  int receives = m.receive ? p->receives : 0, sends = m.send ? p->sends : 0;
  for (size_t k = 0; k < slices; k++) {
    size_t now = n - at < slice ? n - at : slice, bytes = now * element;
    char *received[TREE_CHILDREN], *to = m.to ? m.to + at * element : NULL;
    for (int i = 0; i < receives; i++) {
      struct link *l = &p->in[i];
      AWAIT(load(l->tail) >= l->step + (uint64_t)p->steps, {"waits to receive from", l->channel, l->peer, l->step});
      received[i] = l->direct ? direct_at(l, m.place + (int64_t)(at * element), bytes) : link_slot(l, bytes);
    }
    char *first = NULL;
    for (int i = 0; i < sends; i++) {
      struct link *l = &p->out[i];
      AWAIT(READY_TO_SEND(l, p->steps), {"waits for a free slot to", l->channel, l->peer, l->step});
      link_announce(l, bytes);
      char *slot = l->direct ? direct_at(l, m.place + (int64_t)(at * element), bytes) : link_slot(l, bytes);
      if (!slot) continue;
      if (now && !first) fold(&p->op, first = slot, m.from ? m.from + at * element : NULL, received, receives, now, m.final);
      else if (now) memmove(slot, first, bytes);
    }
    if (now && to && first) memmove(to, first, bytes);
    else if (now && to) fold(&p->op, to, m.from ? m.from + at * element : NULL, received, receives, now, m.final);
    if (to) trace_write(to, bytes, receives ? p->in[0].channel : p->out[0].channel, receives ? p->in[0].peer : -1, receives ? p->in[0].step : p->out[0].step);
    for (int i = 0; i < receives; i++) store(p->in[i].head, p->in[i].step += (uint64_t)p->steps);
    for (int i = 0; i < sends; i++) {
      PACE(&p->out[i], bytes);
      store(p->out[i].tail, p->out[i].step += (uint64_t)p->steps);
    }
    fiber_moved(bytes);
    at += now;
  }
}
