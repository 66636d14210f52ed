// SPDX-License-Identifier: Apache-2.0
// The protocol LL128: lines of 128 bytes, 120 of data and last the step's number plus one. One operation is one step. The sender also counts
// `tail`, and a proxy checks the flags of every line of the announced size; that size is a multiple of what a warp writes at once (16 lines).
#include "play.h"
#include <string.h>

enum { LINE_BYTES = 128, DATA_BYTES = 120, WARP_LINES = 16 };
static char *flag_of(char *line) { return line + DATA_BYTES; }

void ll128_do(struct prim *p, struct move m) {
  size_t element = p->op.bytes, bytes = (size_t)m.elements * element, lines = (bytes + DATA_BYTES - 1) / DATA_BYTES;
  size_t sent_lines = (lines + WARP_LINES - 1) / WARP_LINES * WARP_LINES;
  int receives = m.receive ? p->receives : 0, sends = m.send ? p->sends : 0;
  char *in[TREE_CHILDREN], *out[TREE_CHILDREN], own[DATA_BYTES], value[DATA_BYTES] = {0};
  for (int i = 0; i < sends; i++) {
    struct link *l = &p->out[i];
    AWAIT(READY_TO_SEND(l, 1), {"waits for a free slot to", l->channel, l->peer, l->step});
    PACE(l, lines * LINE_BYTES);
    link_announce(l, sent_lines * LINE_BYTES);
    out[i] = link_slot(l, sent_lines * LINE_BYTES);
  }
  for (int i = 0; i < receives; i++) in[i] = link_slot(&p->in[i], lines * LINE_BYTES);
  for (size_t k = 0; k < (sends ? sent_lines : lines); k++) {
    size_t at = k * DATA_BYTES, now = at >= bytes ? 0 : bytes - at < DATA_BYTES ? bytes - at : DATA_BYTES;
    char *received[TREE_CHILDREN];
    for (int i = 0; i < receives && now; i++) {
      struct link *l = &p->in[i];
      received[i] = in[i] + k * LINE_BYTES;
      AWAIT(load(flag_of(received[i])) == l->step + 1, {"waits for a line from", l->channel, l->peer, l->step});
    }
    if (m.from && now) memcpy(own, m.from + at, now);
    if (now) fold(&p->op, value, m.from ? own : NULL, received, receives, now / element, m.final);
    for (int i = 0; i < sends; i++) {
      memcpy(out[i] + k * LINE_BYTES, value, DATA_BYTES);
      store(flag_of(out[i] + k * LINE_BYTES), p->out[i].step + 1);
    }
    if (m.to && now) memcpy(m.to + at, value, now);
  }
  if (m.to) trace_write(m.to, bytes, receives ? p->in[0].channel : p->out[0].channel, receives ? p->in[0].peer : -1, receives ? p->in[0].step : p->out[0].step);
  for (int i = 0; i < receives; i++) store(p->in[i].head, ++p->in[i].step);
  for (int i = 0; i < sends; i++) {
    p->out[i].step++;
    if (p->out[i].tail) store(p->out[i].tail, p->out[i].step);
  }
  fiber_moved(bytes);
}
