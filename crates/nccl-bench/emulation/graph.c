// SPDX-License-Identifier: Apache-2.0
// Capture of streams into CUDA graphs, and their launch. The rules are those of a GPU: streams join by events; a capture ends
// on the stream that began it, with every other stream joined again; user objects live as long as the graphs that hold them.
#include "graph.h"
#include <stdlib.h>
#include <string.h>

enum { CAPTURES_MAX = 64 }; // at once in one process
static struct graph *live[CAPTURES_MAX];

int capture_live(const struct graph *g, uint64_t number) {
  for (int i = 0; g && i < CAPTURES_MAX; i++)
    if (live[i] == g && g->number == number) return 1;
  return 0;
}

status leaves_add(int **leaves, int *count, const int *more, int more_count) {
  int *grown = realloc(*leaves, sizeof(int) * (size_t)(*count + more_count + 1));
  if (!grown) return OUT_OF_MEMORY;
  *leaves = grown;
  for (int i = 0; i < more_count; i++) {
    int known = 0;
    for (int k = 0; k < *count; k++) known |= grown[k] == more[i];
    if (!known) grown[(*count)++] = more[i];
  }
  return OK;
}

status capture_member(struct graph *g, struct stream *s) {
  for (int i = 0; i < g->member_count; i++)
    if (g->members[i] == s) return OK;
  struct stream **grown = realloc(g->members, sizeof *grown * (size_t)(g->member_count + 1));
  if (!grown) return OUT_OF_MEMORY;
  g->members = grown;
  g->members[g->member_count++] = s;
  return OK;
}

// Before a stream is freed: no capture may name it. A capture whose first stream is gone cannot end.
void capture_leave(struct stream *s) {
  pthread_mutex_lock(&capture_lock);
  struct graph *g = s->capture;
  for (int i = 0; g && i < g->member_count; i++)
    if (g->members[i] == s) g->members[i--] = g->members[--g->member_count];
  if (g && g->origin == s) g->origin = NULL;
  pthread_mutex_unlock(&capture_lock);
}

static status append(struct graph *g, struct work w, const int *waits, int wait_count, int *index) {
  if (g->node_count == g->node_room) {
    int room = g->node_room ? g->node_room * 2 : 64;
    struct node **grown = realloc(g->nodes, sizeof *grown * (size_t)room);
    if (!grown) return OUT_OF_MEMORY;
    g->nodes = grown;
    g->node_room = room;
  }
  struct node *n = calloc(1, sizeof *n);
  if (!n || leaves_add(&n->waits_for, &n->wait_count, waits, wait_count)) { free(n); return OUT_OF_MEMORY; }
  n->work = w;
  *index = g->node_count;
  g->nodes[g->node_count++] = n;
  return OK;
}

status capture_add(struct stream *s, struct work w) {
  int index;
  status r = append(s->capture, w, s->leaves, s->leaf_count, &index);
  if (r == OK) {
    s->capture->nodes[index]->submitted = 1;
    s->leaf_count = 0;
    r = leaves_add(&s->leaves, &s->leaf_count, &index, 1);
  }
  return r;
}

static void drop(struct graph *g) {
  if (--g->references > 0) return;
  for (int i = 0; i < g->node_count; i++) {
    free(g->nodes[i]->waits_for);
    free(g->nodes[i]->work.bytes_of_work);
    free(g->nodes[i]);
  }
  for (int i = 0; i < g->object_count; i++) {
    struct user_object *o = g->objects[i];
    if (--o->references == 0) {
      o->destroy(o->pointer);
      free(o);
    }
  }
  for (int l = 0; l < LANES_MAX; l++) {
    if (g->lanes[l] && g->lanes[l]->queue) queue_end(g->lanes[l]->queue);
    free(g->lanes[l]);
  }
  free(g->nodes);
  free(g->objects);
  free(g->members);
  free(g);
}

// ---- capture
static status emu_cudaStreamBeginCapture(void *handle, int mode) {
  (void)mode;
  static uint64_t number;
  struct stream *s = stream_of(handle);
  if (!s) return remember(CAPTURE_UNSUPPORTED);
  pthread_mutex_lock(&capture_lock);
  struct graph *g = s->capture ? NULL : calloc(1, sizeof *g);
  int slot = 0;
  while (slot < CAPTURES_MAX && live[slot]) slot++;
  status r = OK;
  if (s->capture) r = INVALID_VALUE;
  else if (!g || slot == CAPTURES_MAX || capture_member(g, s)) { free(g); r = OUT_OF_MEMORY; }
  else {
    g->number = ++number;
    g->origin = s;
    g->references = 1;
    live[slot] = g;
    s->capture = g;
    s->leaf_count = 0;
  }
  pthread_mutex_unlock(&capture_lock);
  return remember(r);
}

// The last nodes of the origin stream must wait, directly or not, for every node that was submitted to a stream.
static int all_joined(const struct graph *g) {
  unsigned char *reached = calloc((size_t)g->node_count + 1, 1);
  if (!reached) return 0;
  for (int i = 0; i < g->origin->leaf_count; i++) reached[g->origin->leaves[i]] = 1;
  for (int changed = 1; changed;) { // nodes mostly wait for nodes before them: two passes
    changed = 0;
    for (int i = g->node_count - 1; i >= 0; i--)
      for (int k = 0; reached[i] && k < g->nodes[i]->wait_count; k++) {
        int before = g->nodes[i]->waits_for[k];
        changed |= !reached[before];
        reached[before] = 1;
      }
  }
  int joined = 1;
  for (int i = 0; i < g->node_count; i++) joined &= reached[i] || !g->nodes[i]->submitted;
  free(reached);
  return joined;
}

static status emu_cudaStreamEndCapture(void *handle, struct graph **out) {
  struct stream *s = stream_of(handle);
  if (out) *out = NULL;
  if (!s || !s->capture) return remember(INVALID_VALUE);
  pthread_mutex_lock(&capture_lock);
  struct graph *g = s->capture;
  status r = g->origin != s ? CAPTURE_UNMATCHED : all_joined(g) ? OK : CAPTURE_UNJOINED;
  if (r != CAPTURE_UNMATCHED) {
    for (int i = 0; i < CAPTURES_MAX; i++)
      if (live[i] == g) live[i] = NULL;
    for (int i = 0; i < g->member_count; i++) g->members[i]->capture = NULL, g->members[i]->leaf_count = 0;
    g->number = 0;
    if (r == OK && out) *out = g;
    else drop(g);
  }
  pthread_mutex_unlock(&capture_lock);
  return remember(r);
}

static status emu_cudaStreamIsCapturing(void *handle, int *state) {
  struct stream *s = stream_of(handle);
  *state = s && s->capture;
  return OK;
}
static status emu_cudaStreamGetCaptureInfo(void *handle, int *state, unsigned long long *number, struct graph **graph, const intptr_t **waits, size_t *wait_count) {
  struct stream *s = stream_of(handle);
  struct graph *g = s ? s->capture : NULL;
  if (state) *state = g != NULL;
  if (number) *number = g ? g->number : 0;
  if (!g) return OK;
  if (graph) *graph = g;
  if (waits || wait_count) { // node handles: index + 1, valid during one call
    static __thread intptr_t handles[64];
    if (s->leaf_count > 64) return remember(NOT_SUPPORTED);
    for (int i = 0; i < s->leaf_count; i++) handles[i] = s->leaves[i] + 1;
    if (waits) *waits = handles;
    if (wait_count) *wait_count = (size_t)s->leaf_count;
  }
  return OK;
}
// CUDA 12.3 and later put the edges between graph and count.
static status emu_cudaStreamGetCaptureInfo_v3(void *handle, int *state, unsigned long long *number, struct graph **graph, const intptr_t **waits, const void **edges, size_t *wait_count) {
  if (edges) *edges = NULL;
  return emu_cudaStreamGetCaptureInfo(handle, state, number, graph, waits, wait_count);
}
static status emu_cudaStreamUpdateCaptureDependencies(void *handle, const intptr_t *waits, size_t count, unsigned flags) {
  enum { SET = 1 };
  struct stream *s = stream_of(handle);
  if (!s || !s->capture) return remember(INVALID_VALUE);
  pthread_mutex_lock(&capture_lock);
  status r = OK;
  if (flags & SET) s->leaf_count = 0;
  for (size_t i = 0; i < count && r == OK; i++) {
    int index = (int)waits[i] - 1;
    r = index < 0 || index >= s->capture->node_count ? INVALID_VALUE : leaves_add(&s->leaves, &s->leaf_count, &index, 1);
  }
  pthread_mutex_unlock(&capture_lock);
  return remember(r);
}
static status emu_cudaStreamUpdateCaptureDependencies_v2(void *handle, const intptr_t *waits, const void *edges, size_t count, unsigned flags) {
  (void)edges;
  return emu_cudaStreamUpdateCaptureDependencies(handle, waits, count, flags);
}

// ---- graphs
static status add_node(intptr_t *out, struct graph *g, const intptr_t *waits, size_t count, struct work w) {
  int indices[64], index;
  if (count > 64) return remember(NOT_SUPPORTED);
  for (size_t i = 0; i < count; i++) indices[i] = (int)waits[i] - 1;
  w.device = current_device();
  pthread_mutex_lock(&capture_lock);
  status r = append(g, w, indices, (int)count, &index);
  pthread_mutex_unlock(&capture_lock);
  if (r == OK) *out = index + 1;
  return remember(r);
}
struct kernel_node { void *function; unsigned grid[3], block[3], shared; void **args, **extra; };
static status emu_cudaGraphAddKernelNode(intptr_t *out, struct graph *g, const intptr_t *waits, size_t count, const struct kernel_node *k) {
  if (config()->play) emu_not_emulated("cudaGraphAddKernelNode");
  return add_node(out, g, waits, count, (struct work){.kind = WORK_KERNEL, .function = k->function, .grid = k->grid[0], .block = k->block[0]});
}
struct host_node { void (*f)(void *); void *argument; };
static status emu_cudaGraphAddHostNode(intptr_t *out, struct graph *g, const intptr_t *waits, size_t count, const struct host_node *h) {
  return add_node(out, g, waits, count, (struct work){.kind = WORK_HOST, .host = h->f, .argument = h->argument});
}
static status emu_cudaGraphAddEventRecordNode(intptr_t *out, struct graph *g, const intptr_t *waits, size_t count, struct event *e) {
  return add_node(out, g, waits, count, (struct work){.kind = config()->play ? WORK_RECORD : WORK_MARK, .event = e});
}
static status emu_cudaGraphAddEventWaitNode(intptr_t *out, struct graph *g, const intptr_t *waits, size_t count, struct event *e) {
  return add_node(out, g, waits, count, (struct work){.kind = config()->play ? WORK_AWAIT : WORK_MARK, .event = e});
}
static status emu_cudaGraphAddDependencies(struct graph *g, const intptr_t *from, const intptr_t *to, size_t count) {
  status r = OK;
  pthread_mutex_lock(&capture_lock);
  for (size_t i = 0; i < count && r == OK; i++) {
    int before = (int)from[i] - 1, after = (int)to[i] - 1;
    if (before < 0 || after < 0 || before >= g->node_count || after >= g->node_count) r = INVALID_VALUE;
    else r = leaves_add(&g->nodes[after]->waits_for, &g->nodes[after]->wait_count, &before, 1);
  }
  pthread_mutex_unlock(&capture_lock);
  return remember(r);
}
static status emu_cudaGraphAddDependencies_v2(struct graph *g, const intptr_t *from, const intptr_t *to, const void *edges, size_t count) {
  (void)edges;
  return emu_cudaGraphAddDependencies(g, from, to, count);
}
static status emu_cudaGraphDestroy(struct graph *g) {
  if (!g) return remember(INVALID_VALUE);
  pthread_mutex_lock(&capture_lock);
  drop(g);
  pthread_mutex_unlock(&capture_lock);
  return OK;
}
// An executable graph is the graph itself with one more reference, since neither changes after the capture.
static status emu_cudaGraphInstantiate(struct graph **out, struct graph *g) {
  if (!g) return remember(INVALID_VALUE);
  pthread_mutex_lock(&capture_lock);
  g->references++;
  pthread_mutex_unlock(&capture_lock);
  *out = g;
  return OK;
}
// ---- launch: every node goes to a lane, a queue of its own; lane 0 is the stream of the launch. Branches of the graph are on different lanes, and
// run side by side. clock[l]: how many nodes of lane l come before the end of this node.
struct placed { int lane, previous, announced; unsigned clock[LANES_MAX]; struct event *event; }; // previous: node of the lane before it, or -1

// The nodes in an order in which each comes after those that it waits for. Returns how many there are; fewer than all if they wait in a circle.
static int sorted(const struct graph *g, int *order, unsigned char *done) {
  int count = 0;
  for (int before = -1; before < count && count < g->node_count;) {
    before = count;
    for (int i = 0; i < g->node_count; i++) {
      int ready = !done[i];
      for (int k = 0; ready && k < g->nodes[i]->wait_count; k++) ready = done[g->nodes[i]->waits_for[k]];
      if (ready) done[i] = 1, order[count++] = i;
    }
  }
  return count;
}
// Whether node i must await node b: it is on another lane, and no earlier node of i's lane has awaited it.
static int must_await(const struct placed *p, int i, int b) {
  int lane = p[b].lane, previous = p[i].previous;
  return lane != p[i].lane && (previous < 0 || p[previous].clock[lane] < p[b].clock[lane]);
}
static int place(const struct graph *g, const int *order, struct placed *p) {
  int lanes = 0, last[LANES_MAX];
  for (int n = 0; n < g->node_count; n++) {
    const struct node *node = g->nodes[order[n]];
    struct placed *me = &p[order[n]];
    for (int k = 0; k < node->wait_count; k++)
      for (int l = 0; l < lanes; l++)
        if (p[node->waits_for[k]].clock[l] > me->clock[l]) me->clock[l] = p[node->waits_for[k]].clock[l];
    int lane = 0; // one that has ended before this node, otherwise a new one
    while (lane < lanes && p[last[lane]].clock[lane] != me->clock[lane]) lane++;
    if (lane == LANES_MAX) lane = order[n] % LANES_MAX;
    me->lane = lane;
    me->previous = lane < lanes ? last[lane] : -1;
    if (lane == lanes) lanes++;
    for (int l = 0; me->previous >= 0 && l < lanes; l++)
      if (p[me->previous].clock[l] > me->clock[l]) me->clock[l] = p[me->previous].clock[l];
    me->clock[lane]++;
    last[lane] = order[n];
    for (int k = 0; k < node->wait_count; k++) p[node->waits_for[k]].announced |= must_await(p, order[n], node->waits_for[k]);
  }
  return lanes;
}
static status event_step(struct event *e, enum work_kind kind, void *stream) {
  return e ? queue_submit(stream, (struct work){.kind = kind, .event = e, .device = current_device()}) : OUT_OF_MEMORY;
}
static status launch(struct graph *g, const int *order, struct placed *p, void *stream) {
  int lanes = place(g, order, p);
  void *on[LANES_MAX] = {stream};
  struct event *ends[LANES_MAX] = {NULL}; // the first is the beginning
  status r = OK;
  for (int l = 1; l < lanes && r == OK; l++) {
    if (!g->lanes[l] && !(g->lanes[l] = calloc(1, sizeof *g->lanes[l]))) r = OUT_OF_MEMORY;
    else g->lanes[l]->device = current_device(), on[l] = g->lanes[l];
  }
  for (int l = 0; l < lanes && lanes > 1 && r == OK; l++)
    if (!(ends[l] = calloc(1, sizeof *ends[l]))) r = OUT_OF_MEMORY;
  if (lanes > 1 && r == OK) r = event_step(ends[0], WORK_RECORD, stream);
  for (int l = 1; l < lanes && r == OK; l++) r = event_step(ends[0], WORK_AWAIT, on[l]);
  for (int n = 0; n < g->node_count && r == OK; n++) {
    int i = order[n];
    struct work w = g->nodes[i]->work;
    for (int k = 0; k < g->nodes[i]->wait_count && r == OK; k++)
      if (must_await(p, i, g->nodes[i]->waits_for[k])) r = event_step(p[g->nodes[i]->waits_for[k]].event, WORK_AWAIT, on[p[i].lane]);
    // The graph keeps its arguments; each launch gets a copy, because the graph may be destroyed before the work ends.
    if (w.bytes_of_work && r == OK) {
      size_t bytes = w.kind == WORK_KERNEL ? w.work_bytes + 8 : w.bytes;
      char *copy = malloc(bytes);
      if (copy) w.bytes_of_work = memcpy(copy, w.bytes_of_work, bytes);
      else r = OUT_OF_MEMORY;
    }
    if (r == OK) r = queue_submit(on[p[i].lane], w);
    if (p[i].announced && r == OK) r = event_step(p[i].event = calloc(1, sizeof *p[i].event), WORK_RECORD, on[p[i].lane]);
  }
  for (int l = 1; l < lanes && r == OK; l++) {
    r = event_step(ends[l], WORK_RECORD, on[l]);
    if (r == OK) r = event_step(ends[l], WORK_AWAIT, stream);
  }
  for (int l = 0; l < lanes; l++)
    if (ends[l]) event_free(ends[l]);
  for (int i = 0; i < g->node_count; i++)
    if (p[i].event) event_free(p[i].event);
  return r;
}
static status emu_cudaGraphLaunch(struct graph *g, void *stream) {
  static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
  struct stream *s = stream_of(stream);
  if (!g || (s && s->capture)) return remember(g ? NOT_SUPPORTED : INVALID_VALUE);
  int *order = calloc((size_t)g->node_count + 1, sizeof *order);
  struct placed *p = calloc((size_t)g->node_count + 1, sizeof *p);
  unsigned char *done = calloc((size_t)g->node_count + 1, 1);
  status r = !order || !p || !done ? OUT_OF_MEMORY : sorted(g, order, done) < g->node_count ? INVALID_VALUE : OK;
  pthread_mutex_lock(&one);
  if (r == OK && config()->play) r = launch(g, order, p, stream);
  pthread_mutex_unlock(&one);
  for (int n = 0; n < g->node_count && r == OK && !config()->play; n++) work_run(&g->nodes[order[n]]->work);
  free(order);
  free(p);
  free(done);
  return remember(r);
}
static status emu_cudaGraphGetNodes(struct graph *g, intptr_t *nodes, size_t *count) {
  if (nodes)
    for (size_t i = 0; i < *count && i < (size_t)g->node_count; i++) nodes[i] = (intptr_t)i + 1;
  *count = (size_t)g->node_count;
  return OK;
}
static status emu_cudaUserObjectCreate(struct user_object **out, void *pointer, void (*destroy)(void *), unsigned references, unsigned flags) {
  (void)flags;
  struct user_object *o = calloc(1, sizeof *o);
  if (!o) return remember(OUT_OF_MEMORY);
  *o = (struct user_object){pointer, destroy, (int)references};
  *out = o;
  return OK;
}
static status emu_cudaUserObjectRelease(struct user_object *o, unsigned count) {
  pthread_mutex_lock(&capture_lock);
  o->references -= (int)count;
  int dead = o->references <= 0;
  pthread_mutex_unlock(&capture_lock);
  if (dead) {
    o->destroy(o->pointer);
    free(o);
  }
  return OK;
}
static status emu_cudaGraphRetainUserObject(struct graph *g, struct user_object *o, unsigned count, unsigned flags) {
  enum { MOVE = 1 }; // the caller's reference becomes the graph's
  pthread_mutex_lock(&capture_lock);
  struct user_object **grown = realloc(g->objects, sizeof *grown * (size_t)(g->object_count + 1));
  if (grown) {
    g->objects = grown;
    g->objects[g->object_count++] = o;
    if (!(flags & MOVE)) o->references += (int)count;
  }
  pthread_mutex_unlock(&capture_lock);
  return remember(grown ? OK : OUT_OF_MEMORY);
}

const struct entry graph_entries[] = {
  ENTRY(cudaStreamBeginCapture), ENTRY(cudaStreamEndCapture), ENTRY(cudaStreamIsCapturing), ENTRY(cudaStreamGetCaptureInfo),
  ALIAS(cudaStreamGetCaptureInfo_v2, emu_cudaStreamGetCaptureInfo), ENTRY(cudaStreamGetCaptureInfo_v3),
  ENTRY(cudaStreamUpdateCaptureDependencies), ENTRY(cudaStreamUpdateCaptureDependencies_v2), ENTRY(cudaGraphAddKernelNode),
  ENTRY(cudaGraphAddHostNode), ENTRY(cudaGraphAddEventRecordNode), ENTRY(cudaGraphAddEventWaitNode),
  ENTRY(cudaGraphAddDependencies), ENTRY(cudaGraphAddDependencies_v2), ENTRY(cudaGraphDestroy), ENTRY(cudaGraphInstantiate), ALIAS(cudaGraphInstantiateWithFlags, emu_cudaGraphInstantiate), ENTRY(cudaGraphLaunch), ALIAS(cudaGraphExecDestroy, emu_cudaGraphDestroy),
  ENTRY(cudaGraphGetNodes), ENTRY(cudaUserObjectCreate), ENTRY(cudaUserObjectRelease), ENTRY(cudaGraphRetainUserObject), {0, 0}};
