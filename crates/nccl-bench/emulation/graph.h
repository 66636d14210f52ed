// SPDX-License-Identifier: Apache-2.0
// CUDA graphs, as far as capture needs them: nodes in the order of capture, each with the nodes that it waits for.
#ifndef LINKWISE_EMU_GRAPH_H
#define LINKWISE_EMU_GRAPH_H
#include "emu.h"
#include <pthread.h>

struct node { struct work work; int *waits_for, wait_count, submitted; }; // submitted: to a stream, not added by a graph call
struct user_object { void *pointer; void (*destroy)(void *); int references; };
enum { LANES_MAX = 32 };         // branches of a graph that run side by side
struct graph {
  uint64_t number;               // of the capture; 0 once it has ended
  struct stream *origin;
  struct stream **members; int member_count;
  struct node **nodes; int node_count, node_room;
  struct user_object **objects; int object_count;
  int references;                // the caller's handle and every executable graph
  struct stream *lanes[LANES_MAX]; // of branches beside the stream of the launch; made at the first launch that needs them
};
// `leaves`: nodes that the next work on this stream must wait for.
// `blocking`: in order with the legacy default stream of its device.
struct stream { uint64_t number; struct graph *capture; int *leaves, leaf_count; struct queue *queue; int device, blocking; };
// `recorded`: records that were queued; `done`: those that ran, the last one at `seconds`. `users`: queued work that names the event.
struct event {
  struct graph *capture; uint64_t capture_number; int *leaves, leaf_count;
  uint64_t recorded, done; double seconds, clock; int users, destroyed; // clock: when the recorded work ended, in times of the model (lane.c)
};

extern pthread_mutex_t capture_lock;
void capture_leave(struct stream *s);
// All with capture_lock held.
status capture_add(struct stream *s, struct work w);
status capture_member(struct graph *g, struct stream *s);
int capture_live(const struct graph *g, uint64_t number);
status leaves_add(int **leaves, int *count, const int *more, int more_count);
#endif
