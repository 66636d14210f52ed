// SPDX-License-Identifier: Apache-2.0
// Streams that take time: each stream with work has a thread that runs its work in order. Events order the work of different streams, and the
// legacy default stream runs in the order of submission with every blocking stream of its device.
#include "graph.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum order { NON_BLOCKING, BLOCKING, LEGACY };
struct item { struct work work; uint64_t ticket; double submitted; struct item *next; }; // ticket: the order of submission in the process
struct queue { struct item *first, **last; int ending, device; enum order order; double clock; struct queue *other; }; // clock: when the work so far ended, in times of the model (lane.c)

// One lock for all queues and events of the process: a rank has few streams, and work is long.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct queue *queues, defaults[GPUS_MAX];
static uint64_t tickets;
static __thread int runs_queue; // boolean: this thread is a stream's

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// With the lock held.
static void forget(struct event *e) {
  if (--e->users > 0 || !e->destroyed) return;
  free(e->leaves);
  free(e);
}

// With the lock held. The first item of a queue is the one that runs, or will run next. Items wait only for smaller tickets, so not for each other.
static int in_turn(const struct queue *q, uint64_t ticket) {
  for (const struct queue *o = queues; o && q->order != NON_BLOCKING; o = o->other)
    if (o->device == q->device && o->order == (q->order == LEGACY ? BLOCKING : LEGACY) && o->first && o->first->ticket < ticket) return 0;
  return 1;
}

// Runs work that may begin at a time. Returns when it has ended.
static double run(const struct work *w, double ready) {
  int lane = w->kind == WORK_COPY && w->bytes && !w->bytes_of_work ? lane_of(w->to, w->from) : LANE_FREE;
  double end = lane >= 0 ? lane_reserve(lane, w->bytes, ready) : 0;
  work_run(w);
  if (lane >= 0) lane_wait(end);
  return lane >= 0 ? end : now();
}

static void *queue_run(void *argument) {
  struct queue *q = argument;
  runs_queue = 1;
  select_device(q->device);
  pthread_mutex_lock(&lock);
  for (;;) {
    while (!q->first && !q->ending) pthread_cond_wait(&changed, &lock);
    if (!q->first) break;
    struct item *i = q->first;
    struct event *e = i->work.event;
    while (!in_turn(q, i->ticket)) pthread_cond_wait(&changed, &lock);
    double ready = q->clock > i->submitted ? q->clock : i->submitted;
    if (i->work.kind == WORK_AWAIT) {
      while (e->done < i->work.sequence) pthread_cond_wait(&changed, &lock);
      q->clock = e->clock > ready ? e->clock : ready;
    } else if (i->work.kind == WORK_RECORD) {
      if (e->done < i->work.sequence) e->done = i->work.sequence, e->seconds = now();
      q->clock = e->clock = ready;
    } else {
      pthread_mutex_unlock(&lock);
      double end = run(&i->work, ready);
      pthread_mutex_lock(&lock);
      q->clock = end;
    }
    if (e) forget(e);
    q->first = i->next;
    if (!q->first) q->last = &q->first;
    free(i->work.bytes_of_work);
    free(i);
    pthread_cond_broadcast(&changed);
  }
  for (struct queue **at = &queues; *at; at = &(*at)->other)
    if (*at == q) { *at = q->other; break; }
  pthread_mutex_unlock(&lock);
  free(q);
  return NULL;
}

// With the lock held. NULL: no memory or no thread.
static struct queue *start(struct queue *q, int device, enum order order) {
  pthread_t thread;
  pthread_attr_t detached;
  *q = (struct queue){.device = device, .order = order, .other = queues};
  q->last = &q->first;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  int bad = pthread_create(&thread, &detached, queue_run, q);
  pthread_attr_destroy(&detached);
  if (bad) return NULL;
  return queues = q;
}
static struct queue *queue_of(void *handle, int make) {
  struct stream *s = stream_of(handle);
  int device = current_device();
  if (!s) return defaults[device].last ? &defaults[device] : make ? start(&defaults[device], device, LEGACY) : NULL;
  if (!s->queue && make) {
    struct queue *q = malloc(sizeof *q);
    if (q && !(s->queue = start(q, s->device, s->blocking ? BLOCKING : NON_BLOCKING))) free(q);
  }
  return s->queue;
}

status queue_submit(void *handle, struct work w) {
  struct item *i = calloc(1, sizeof *i);
  pthread_mutex_lock(&lock);
  struct queue *q = i ? queue_of(handle, 1) : NULL;
  if (q) {
    if (w.event) w.event->users++;
    if (w.kind == WORK_RECORD) w.sequence = ++w.event->recorded;
    if (w.kind == WORK_AWAIT) w.sequence = w.event->recorded;
    i->work = w;
    i->ticket = ++tickets;
    i->submitted = now();
    *q->last = i;
    q->last = &i->next;
    pthread_cond_broadcast(&changed);
  }
  pthread_mutex_unlock(&lock);
  if (q) return OK;
  free(w.bytes_of_work);
  free(i);
  return OUT_OF_MEMORY;
}

// With the lock held. Whether work up to a ticket is left: of a stream, of the legacy default stream and all blocking ones, or of a device.
enum scope { OF_STREAM, OF_LEGACY, OF_DEVICE };
static int is_busy(const struct queue *q, enum scope scope, int device, uint64_t until) {
  for (const struct queue *o = queues; o; o = o->other)
    if (o->first && o->first->ticket <= until && (o == q || (o->device == device && scope != OF_STREAM && (scope == OF_DEVICE || o->order != NON_BLOCKING)))) return 1;
  return 0;
}
static status drain(const struct queue *q, enum scope scope, int device, const char *caller) {
  if (runs_queue) return NOT_PERMITTED;
  watch_enter(caller, 0);
  pthread_mutex_lock(&lock);
  for (uint64_t until = tickets; is_busy(q, scope, device, until);) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  watch_leave();
  return OK;
}
status queue_drain(void *handle, const char *caller) {
  pthread_mutex_lock(&lock);
  struct queue *q = queue_of(handle, 0);
  pthread_mutex_unlock(&lock);
  return drain(q, stream_of(handle) ? OF_STREAM : OF_LEGACY, current_device(), caller);
}
status queue_drain_device(int device, const char *caller) { return drain(NULL, OF_DEVICE, device, caller); }
int queue_busy(void *handle) {
  pthread_mutex_lock(&lock);
  int busy = is_busy(queue_of(handle, 0), stream_of(handle) ? OF_STREAM : OF_LEGACY, current_device(), tickets);
  pthread_mutex_unlock(&lock);
  return busy;
}
void queue_end(struct queue *q) {
  pthread_mutex_lock(&lock);
  q->ending = 1;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

// ---- events
int event_done(struct event *e) {
  pthread_mutex_lock(&lock);
  int done = e->done >= e->recorded;
  pthread_mutex_unlock(&lock);
  return done;
}
status event_await(struct event *e) {
  if (runs_queue) return NOT_PERMITTED;
  watch_enter("cudaEventSynchronize", 0);
  pthread_mutex_lock(&lock);
  for (uint64_t wanted = e->recorded; e->done < wanted;) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
  watch_leave();
  return OK;
}
double event_seconds(struct event *from, struct event *to) {
  pthread_mutex_lock(&lock);
  double s = to->seconds - from->seconds;
  pthread_mutex_unlock(&lock);
  return s;
}
void event_free(struct event *e) {
  pthread_mutex_lock(&lock);
  e->destroyed = 1;
  e->users++;
  forget(e);
  pthread_mutex_unlock(&lock);
}
