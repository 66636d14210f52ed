// SPDX-License-Identifier: Apache-2.0
// All-reduce along a tree (ncclTree): sums move `up` to the root, the result moves `down`. Both directions of a channel run at once.
//
// Order of a sum: a rank adds to its input the values of its children in the order of `down`; its parent does the same.
#include "play.h"
#include <stdlib.h>

struct tree {
  const struct play *k;
  const struct function *f;
  struct part part;
  const char *work;
  char *channel_at;
  int channel, up, down[TREE_CHILDREN], children, *left;
};

static void open_all(const struct tree *t, struct prim *p, int from_children, int from_parent, int to_children, int to_parent) {
  *p = (struct prim){.protocol = t->f->protocol, .slices = 1, .steps = 1, .op = t->f->op};
  for (int i = 0; i < t->children && from_children; i++) link_open(&p->in[p->receives++], t->k, t->channel_at, t->channel, t->down[i], 0, 0, p->protocol);
  if (from_parent) link_open(&p->in[p->receives++], t->k, t->channel_at, t->channel, t->up, 0, 0, p->protocol);
  for (int i = 0; i < t->children && to_children; i++) link_open(&p->out[p->sends++], t->k, t->channel_at, t->channel, t->down[i], 1, 0, p->protocol);
  if (to_parent) link_open(&p->out[p->sends++], t->k, t->channel_at, t->channel, t->up, 1, 0, p->protocol);
  p->step_elements = (p->sends ? p->out[0] : p->in[0]).step_bytes / p->op.bytes;
  direct_collective(p, t->k, t->work, &t->part);
  prim_begin(p);
}

enum stage { AT_ROOT, UPWARDS, DOWNWARDS };
static void stage_run(const struct tree *t, enum stage s) {
  struct prim p;
  if (s == AT_ROOT) open_all(t, &p, 1, 0, 1, 0);
  else if (s == UPWARDS) open_all(t, &p, 1, 0, 0, 1);
  else open_all(t, &p, 0, 1, 1, 0);
  for (int64_t done = 0; done < t->part.count && !fiber_aborted(); done += t->part.chunk) {
    int64_t offset = (t->part.at + done) * (int64_t)p.op.bytes, n = t->part.count - done < t->part.chunk ? t->part.count - done : t->part.chunk;
    const char *from = s == DOWNWARDS ? NULL : t->part.in + offset;
    char *to = s == UPWARDS ? NULL : t->part.out + offset;
    prim_do(&p, (struct move){from, to, n, p.receives > 0, p.sends > 0, s == AT_ROOT, offset});
  }
  prim_end(&p);
}
static void downwards(void *argument) {
  struct tree *t = argument;
  stage_run(t, DOWNWARDS);
  --*t->left;
}

void tree_play(const struct play *k, int channel, char *channel_at, const char *work, const struct function *f) {
  int left = 0;
  struct tree t = {.k = k, .f = f, .part = coll_part(work, channel, f), .work = work, .channel_at = channel_at, .channel = channel, .up = (int)(int32_t)get(channel_at, CHANNEL_up), .left = &left};
  const int *down = (const int *)member(channel_at, CHANNEL_down);
  while (t.children < TREE_CHILDREN && down[t.children] >= 0) t.down[t.children] = down[t.children], t.children++;
  if (f->collective != ALL_REDUCE) play_refuse("a tree for collective %d", f->collective);
  size_t bytes = (size_t)t.part.total * f->op.bytes;
  if (bytes) known((uint64_t)(uintptr_t)t.part.in, bytes, "the input of a collective"), known((uint64_t)(uintptr_t)t.part.out, bytes, "the output of a collective");
  if (t.up < 0 && !t.children) play_refuse("channel %d: a tree of one rank", channel);
  if (t.up < 0) {
    stage_run(&t, AT_ROOT);
    return;
  }
  left = 1;
  fiber_new(downwards, &t); // `t` lives until the fiber has ended
  stage_run(&t, UPWARDS);
  while (left) fiber_yield((struct waits){NULL, channel, 0, 0});
}
