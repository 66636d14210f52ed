// SPDX-License-Identifier: Apache-2.0
// The protocol LL: lines of 16 bytes, each with 8 bytes of data and the low 32 bits of the step's number plus one after every 4 bytes. The receiver waits for
// the flags of a line, not for a counter. One operation is one step.
#include "play.h"
#include <string.h>

struct line { uint32_t data1, flag1, data2, flag2; };
enum { DATA_BYTES = 8 };

static int arrived(const struct line *l, uint32_t flag) {
  return __atomic_load_n(&l->flag1, __ATOMIC_ACQUIRE) == flag && __atomic_load_n(&l->flag2, __ATOMIC_ACQUIRE) == flag;
}
static void write_line(struct line *l, uint64_t data, uint32_t flag) {
  l->data1 = (uint32_t)data;
  l->data2 = (uint32_t)(data >> 32);
  __atomic_store_n(&l->flag1, flag, __ATOMIC_RELEASE);
  __atomic_store_n(&l->flag2, flag, __ATOMIC_RELEASE);
}

void ll_do(struct prim *p, struct move m) {
  size_t element = p->op.bytes, n = (size_t)m.elements, in_line = DATA_BYTES / element, lines = (n + in_line - 1) / in_line;
  int receives = m.receive ? p->receives : 0, sends = m.send ? p->sends : 0;
  struct line *in[TREE_CHILDREN], *out[TREE_CHILDREN];
  for (int i = 0; i < sends; i++) {
    struct link *l = &p->out[i];
    AWAIT(READY_TO_SEND(l, 1), {"waits for a free slot to", l->channel, l->peer, l->step});
    PACE(l, lines * sizeof(struct line));
    link_announce(l, lines * sizeof(struct line));
    out[i] = (struct line *)link_slot(l, lines * sizeof(struct line));
  }
  for (int i = 0; i < receives; i++) in[i] = (struct line *)link_slot(&p->in[i], lines * sizeof(struct line));
  for (size_t k = 0; k < lines; k++) {
    size_t now = n - k * in_line < in_line ? n - k * in_line : in_line;
    uint64_t own = 0, value = 0, data[TREE_CHILDREN];
    char *received[TREE_CHILDREN];
    if (m.from) memcpy(&own, m.from + k * DATA_BYTES, now * element);
    for (int i = 0; i < receives; i++) {
      struct link *l = &p->in[i];
      AWAIT(arrived(&in[i][k], (uint32_t)l->step + 1), {"waits for a line from", l->channel, l->peer, l->step});
      data[i] = in[i][k].data1 | (uint64_t)in[i][k].data2 << 32;
      received[i] = (char *)&data[i];
    }
    fold(&p->op, (char *)&value, m.from ? (char *)&own : NULL, received, receives, now, m.final);
    for (int i = 0; i < sends; i++) write_line(&out[i][k], value, (uint32_t)p->out[i].step + 1);
    if (m.to) memcpy(m.to + k * DATA_BYTES, &value, now * element);
  }
  if (m.to) trace_write(m.to, n * element, receives ? p->in[0].channel : p->out[0].channel, receives ? p->in[0].peer : -1, receives ? p->in[0].step : p->out[0].step);
  for (int i = 0; i < receives; i++) store(p->in[i].head, ++p->in[i].step);
  for (int i = 0; i < sends; i++) p->out[i].step++;
  fiber_moved(n * element);
}
