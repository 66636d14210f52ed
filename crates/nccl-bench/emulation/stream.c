// SPDX-License-Identifier: Apache-2.0
// Streams and events. Work runs when it is submitted, so streams and events are always complete. On a stream that is being
// captured, work becomes a node of the graph instead (graph.c).
#include "emu.h"
#include "graph.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;

// The last kernel launch and the number of launches, per device. The runner reads them after each collective.
static atomic_ulong launch_counts[GPUS_MAX];
static atomic_uint last_grid[GPUS_MAX], last_block[GPUS_MAX];

void work_run(const struct work *w) {
  switch (w->kind) {
  case WORK_KERNEL: {
    int device = w->device >= 0 && w->device < GPUS_MAX ? w->device : 0;
    atomic_store(&last_grid[device], w->grid);
    atomic_store(&last_block[device], w->block);
    atomic_fetch_add(&launch_counts[device], 1);
    emu_log(1, "launch device %d grid %u block %u", device, w->grid, w->block);
    break;
  }
  case WORK_HOST: w->host(w->argument); break;
  case WORK_COPY: if (w->bytes) memmove(w->to, w->from, w->bytes); break;
  case WORK_FILL: memory_fill(w->to, w->value, w->bytes); break;
  case WORK_MARK: break;
  }
}

PUBLIC unsigned long linkwise_emu_launches(int device, unsigned *grid, unsigned *block) {
  if (device < 0 || device >= GPUS_MAX) return 0;
  if (grid) *grid = atomic_load(&last_grid[device]);
  if (block) *block = atomic_load(&last_block[device]);
  return atomic_load(&launch_counts[device]);
}

// The default streams are the handles 0, 1 and 2; they cannot be captured.
struct stream *stream_of(void *handle) { return (uintptr_t)handle <= 2 ? NULL : handle; }

status stream_submit(void *handle, struct work w) {
  struct stream *s = stream_of(handle);
  w.device = current_device();
  pthread_mutex_lock(&capture_lock);
  if (s && s->capture) {
    status r = capture_add(s, w);
    pthread_mutex_unlock(&capture_lock);
    return remember(r);
  }
  pthread_mutex_unlock(&capture_lock);
  work_run(&w);
  return OK;
}

// ---- streams
static status emu_cudaStreamCreate(struct stream **out) {
  static atomic_ulong next;
  struct stream *s = calloc(1, sizeof *s);
  if (!s) return remember(OUT_OF_MEMORY);
  s->number = atomic_fetch_add(&next, 1) + 3; // after the default streams
  *out = s;
  return OK;
}
static status emu_cudaStreamCreateWithFlags(struct stream **out, unsigned flags) { (void)flags; return emu_cudaStreamCreate(out); }
static status emu_cudaStreamCreateWithPriority(struct stream **out, unsigned flags, int priority) { (void)flags; (void)priority; return emu_cudaStreamCreate(out); }
static status emu_cudaStreamDestroy(void *handle) {
  struct stream *s = stream_of(handle);
  if (!s) return remember(INVALID_HANDLE);
  free(s->leaves);
  free(s);
  return OK;
}
static status emu_cudaStreamGetId(void *handle, unsigned long long *id) {
  struct stream *s = stream_of(handle);
  *id = s ? s->number : (unsigned long long)(uintptr_t)handle;
  return OK;
}
static status emu_cudaStreamGetPriority(void *handle, int *priority) { (void)handle; *priority = 0; return OK; }
static status emu_cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return OK; }
// No work is ever pending. A query of a capturing stream is an error, as on a GPU.
static status emu_cudaStreamQuery(void *handle) {
  struct stream *s = stream_of(handle);
  return s && s->capture ? remember(CAPTURE_UNSUPPORTED) : OK;
}

// ---- events
static status emu_cudaEventCreate(struct event **out) { return (*out = calloc(1, sizeof **out)) ? OK : remember(OUT_OF_MEMORY); }
static status emu_cudaEventCreateWithFlags(struct event **out, unsigned flags) { (void)flags; return emu_cudaEventCreate(out); }
static status emu_cudaEventDestroy(struct event *e) {
  if (e) free(e->leaves);
  free(e);
  return OK;
}
static status emu_cudaEventRecord(struct event *e, void *handle) {
  struct stream *s = stream_of(handle);
  if (!e) return remember(INVALID_HANDLE);
  pthread_mutex_lock(&capture_lock);
  status r = OK;
  e->capture = NULL;
  e->leaf_count = 0;
  if (s && s->capture) {
    r = leaves_add(&e->leaves, &e->leaf_count, s->leaves, s->leaf_count);
    e->capture = s->capture;
    e->capture_number = s->capture->number;
  }
  pthread_mutex_unlock(&capture_lock);
  return remember(r);
}
static status emu_cudaEventRecordWithFlags(struct event *e, void *handle, unsigned flags) {
  enum { EXTERNAL = 1 }; // a separate node that joins no stream
  return flags & EXTERNAL ? stream_submit(handle, (struct work){.kind = WORK_MARK}) : emu_cudaEventRecord(e, handle);
}
// A stream that waits for an event of a capture joins that capture.
static status emu_cudaStreamWaitEvent(void *handle, struct event *e, unsigned flags) {
  enum { EXTERNAL = 1 };
  struct stream *s = stream_of(handle);
  if (!e) return remember(INVALID_HANDLE);
  if (flags & EXTERNAL) return stream_submit(handle, (struct work){.kind = WORK_MARK});
  pthread_mutex_lock(&capture_lock);
  status r = OK;
  struct graph *g = capture_live(e->capture, e->capture_number) ? e->capture : NULL;
  if (g && !s) r = CAPTURE_UNSUPPORTED;
  else if (g && s->capture && s->capture != g) r = CAPTURE_MERGE;
  else if (g) {
    if (!s->capture) s->leaf_count = 0;
    s->capture = g;
    r = leaves_add(&s->leaves, &s->leaf_count, e->leaves, e->leaf_count);
    if (r == OK) r = capture_member(g, s);
  }
  pthread_mutex_unlock(&capture_lock);
  return remember(r);
}
static status emu_cudaEventElapsedTime(float *ms, struct event *a, struct event *b) { (void)a; (void)b; *ms = 0.001f; return OK; }
static status emu_accept(void) { return OK; }

// ---- work
static status emu_cudaLaunchHostFunc(void *stream, void (*f)(void *), void *argument) {
  return stream_submit(stream, (struct work){.kind = WORK_HOST, .host = f, .argument = argument});
}
struct dim3 { unsigned x, y, z; };
static status emu_cudaLaunchKernel(const void *f, struct dim3 grid, struct dim3 block, void **args, size_t shared, void *stream) {
  (void)args; (void)shared;
  return stream_submit(stream, (struct work){.kind = WORK_KERNEL, .function = f, .grid = grid.x, .block = block.x});
}
struct launch_config { struct dim3 grid, block; size_t shared; void *stream; void *attributes; unsigned attribute_count; };
static status emu_cudaLaunchKernelExC(const struct launch_config *c, const void *f, void **args) {
  return emu_cudaLaunchKernel(f, c->grid, c->block, args, c->shared, c->stream);
}
struct driver_launch_config { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned attribute_count; };
status emu_cuLaunchKernelEx(const struct driver_launch_config *c, const void *f, void **args, void **extra) {
  (void)args; (void)extra;
  return stream_submit(c->stream, (struct work){.kind = WORK_KERNEL, .function = f, .grid = c->grid[0], .block = c->block[0]});
}
status emu_cuLaunchKernel(const void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          void *stream, void **args, void **extra) {
  (void)gy; (void)gz; (void)by; (void)bz; (void)shared; (void)args; (void)extra;
  return stream_submit(stream, (struct work){.kind = WORK_KERNEL, .function = f, .grid = gx, .block = bx});
}
// Stream memory operations: writes happen, and waits return at once, because the kernel or NIC that they wait for does nothing.
static status emu_cuStreamWriteValue32(void *stream, uint32_t *to, uint32_t value, unsigned flags) {
  (void)stream; (void)flags;
  *to = value;
  return OK;
}
static status emu_cuStreamWriteValue64(void *stream, uint64_t *to, uint64_t value, unsigned flags) {
  (void)stream; (void)flags;
  *to = value;
  return OK;
}

const struct entry stream_entries[] = {
  ENTRY(cudaStreamCreate), ENTRY(cudaStreamCreateWithFlags), ENTRY(cudaStreamCreateWithPriority), ENTRY(cudaStreamDestroy),
  ENTRY(cudaStreamGetId), ENTRY(cudaStreamGetPriority), ENTRY(cudaDeviceGetStreamPriorityRange), ENTRY(cudaStreamQuery), ALIAS(cudaStreamSynchronize, emu_cudaStreamQuery), ENTRY(cudaEventCreate),
  ENTRY(cudaEventCreateWithFlags), ENTRY(cudaEventDestroy), ENTRY(cudaEventRecord), ENTRY(cudaEventRecordWithFlags), ENTRY(cudaStreamWaitEvent),
  ENTRY(cudaEventElapsedTime), ALIAS(cudaEventQuery, emu_accept), ALIAS(cudaEventSynchronize, emu_accept), ENTRY(cudaLaunchHostFunc),
  ENTRY(cudaLaunchKernel), ENTRY(cudaLaunchKernelExC), {0, 0}};
const struct entry stream_driver_entries[] = {
  ENTRY(cuLaunchKernel), ENTRY(cuLaunchKernelEx), ENTRY(cuStreamWriteValue32), ENTRY(cuStreamWriteValue64),
  ALIAS(cuStreamWaitValue32, emu_accept), ALIAS(cuStreamWaitValue64, emu_accept), ALIAS(cuStreamBatchMemOp, emu_accept), {0, 0}};
