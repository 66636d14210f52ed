// SPDX-License-Identifier: Apache-2.0
// Streams and events. Without played kernels, work runs when it is submitted, so streams and events are always complete; otherwise it goes to
// the queue of its stream (queue.c). On a stream that is being captured, work becomes a node of the graph instead (graph.c).
#include "emu.h"
#include "graph.h"
#include "play.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;

// The last kernel launch and the number of launches, per device. The runner reads them after each collective.
static atomic_ulong launch_counts[GPUS_MAX];
static atomic_uint last_grid[GPUS_MAX], last_block[GPUS_MAX];

// A stream memory operation: waits until the word at `to` fits. Values are compared cyclically, as the driver does.
static void wait_value(const struct work *w) {
  enum { AT_LEAST = 0, EQUAL = 1, ANY_BIT = 2, NO_BIT_OF_NOR = 3 };
  for (;;) {
    uint64_t now = w->words32 ? __atomic_load_n((uint32_t *)w->to, __ATOMIC_ACQUIRE) : __atomic_load_n((uint64_t *)w->to, __ATOMIC_ACQUIRE);
    int fits = w->compare == AT_LEAST ? (w->words32 ? (int32_t)(uint32_t)(now - w->word) >= 0 : (int64_t)(now - w->word) >= 0)
             : w->compare == EQUAL ? now == w->word : w->compare == ANY_BIT ? (now & w->word) != 0 : ~(now | w->word) != 0;
    if (fits) return;
    watch_nap(50);
  }
}

void work_run(const struct work *w) {
  switch (w->kind) {
  case WORK_KERNEL: {
    int device = w->device >= 0 && w->device < GPUS_MAX ? w->device : 0;
    atomic_store(&last_grid[device], w->grid);
    atomic_store(&last_block[device], w->block);
    atomic_fetch_add(&launch_counts[device], 1);
    emu_log(1, "launch device %d grid %u block %u", device, w->grid, w->block);
    if (config()->play == PLAY_BYTES || config()->play == PLAY_WRONG_PARTS) play_kernel(kernel_name(w->function), w->bytes_of_work, w->work_bytes);
    break;
  }
  case WORK_HOST:
    watch_program_runs(1);
    w->host(w->argument);
    watch_program_runs(-1);
    break;
  case WORK_COPY: if (w->bytes) memmove(w->to, w->bytes_of_work ? w->bytes_of_work : w->from, w->bytes); break;
  case WORK_FILL: memory_fill(w->to, w->value, w->bytes); break;
  case WORK_FREE: memory_free(w->to); break;
  case WORK_WRITE: memcpy(w->to, &w->word, w->words32 ? 4 : 8); break;
  case WORK_WAIT_VALUE: wait_value(w); break;
  case WORK_RECORD: case WORK_AWAIT: case WORK_MARK: break; // queue.c has their order
  }
}

PUBLIC unsigned long linkwise_emu_launches(int device, unsigned *grid, unsigned *block) {
  if (device < 0 || device >= GPUS_MAX) return 0;
  if (grid) *grid = atomic_load(&last_grid[device]);
  if (block) *block = atomic_load(&last_block[device]);
  return atomic_load(&launch_counts[device]);
}

// Handles of default streams: 0 and 1 are the legacy one, which cannot be captured; 2 is the calling thread's, a blocking stream.
enum { LEGACY_STREAM = 1, THREAD_STREAM = 2 };
static struct stream *new_stream(int blocking) {
  static atomic_ulong next;
  struct stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  *s = (struct stream){.number = atomic_fetch_add(&next, 1) + 3, .device = current_device(), .blocking = blocking}; // numbers after the default streams
  return s;
}
static void end_stream(struct stream *s) {
  if (s->queue) queue_end(s->queue);
  free(s->leaves);
  free(s);
}
static __thread struct stream *own_streams[GPUS_MAX];
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;
static void end_own_streams(void *unused) {
  (void)unused;
  for (int i = 0; i < GPUS_MAX; i++)
    if (own_streams[i]) end_stream(own_streams[i]);
}
static void make_own_key(void) { pthread_key_create(&own_key, end_own_streams); }
struct stream *stream_of(void *handle) {
  if ((uintptr_t)handle != THREAD_STREAM) return (uintptr_t)handle <= LEGACY_STREAM ? NULL : handle;
  struct stream **own = &own_streams[current_device()];
  if (!*own && (*own = new_stream(1))) {
    pthread_once(&own_once, make_own_key);
    pthread_setspecific(own_key, own_streams);
  }
  return *own;
}
int stream_captured(void *handle) {
  struct stream *s = stream_of(handle);
  pthread_mutex_lock(&capture_lock);
  int captured = s && s->capture;
  pthread_mutex_unlock(&capture_lock);
  return captured;
}

status stream_submit(void *handle, struct work w) {
  struct stream *s = stream_of(handle);
  w.device = current_device();
  pthread_mutex_lock(&capture_lock);
  if (s && s->capture) {
    status r = capture_add(s, w);
    if (r) free(w.bytes_of_work);
    pthread_mutex_unlock(&capture_lock);
    return remember(r);
  }
  pthread_mutex_unlock(&capture_lock);
  if (config()->play) return remember(queue_submit(handle, w));
  work_run(&w);
  free(w.bytes_of_work);
  return OK;
}

// `extra` holds the arguments as one block: {1, block, 2, &size, 0}. They are read before the call returns.
status kernel_submit(void *stream, struct work w, void **extra) {
  enum { ARGUMENTS_MAX = 1 << 16 };
  const void *block = NULL;
  size_t bytes = 0;
  for (int i = 0; extra && extra[i] && i < 8; i += 2) {
    if (extra[i] == (void *)1) block = extra[i + 1];
    if (extra[i] == (void *)2) bytes = *(size_t *)extra[i + 1];
  }
  w.kind = WORK_KERNEL;
  if (config()->play && block && bytes && bytes <= ARGUMENTS_MAX) {
    w.bytes_of_work = calloc(1, bytes + 8); // structures are read in words of 8 bytes
    if (!w.bytes_of_work) return remember(OUT_OF_MEMORY);
    memcpy(w.bytes_of_work, block, bytes);
    w.work_bytes = bytes;
  }
  return stream_submit(stream, w);
}

// ---- streams
static status emu_cudaStreamCreateWithFlags(struct stream **out, unsigned flags) {
  enum { WITHOUT_DEFAULT_STREAM = 1 };
  return (*out = new_stream(!(flags & WITHOUT_DEFAULT_STREAM))) ? OK : remember(OUT_OF_MEMORY);
}
static status emu_cudaStreamCreate(struct stream **out) { return emu_cudaStreamCreateWithFlags(out, 0); }
static status emu_cudaStreamCreateWithPriority(struct stream **out, unsigned flags, int priority) { (void)priority; return emu_cudaStreamCreateWithFlags(out, flags); }
static status emu_cudaStreamGetFlags(void *handle, unsigned *flags) {
  struct stream *s = stream_of(handle);
  *flags = s && !s->blocking;
  return OK;
}
static status emu_cudaStreamDestroy(struct stream *s) {
  if ((uintptr_t)s <= THREAD_STREAM) return remember(INVALID_HANDLE);
  capture_leave(s); // NCCL destroys a stream that has joined a capture before the capture ends
  end_stream(s);
  return OK;
}
static status emu_cudaStreamGetId(void *handle, unsigned long long *id) {
  struct stream *s = stream_of(handle);
  *id = s ? s->number : (unsigned long long)(uintptr_t)handle;
  return OK;
}
static status emu_cudaStreamGetPriority(void *handle, int *priority) { (void)handle; *priority = 0; return OK; }
static status emu_cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return OK; }
// A query of a capturing stream is an error, as on a GPU.
static status emu_cudaStreamQuery(void *handle) {
  struct stream *s = stream_of(handle);
  if (s && s->capture) return remember(CAPTURE_UNSUPPORTED);
  return config()->play && queue_busy(handle) ? NOT_READY : OK;
}
static status emu_cudaStreamSynchronize(void *handle) {
  struct stream *s = stream_of(handle);
  if (s && s->capture) return remember(CAPTURE_UNSUPPORTED);
  return config()->play ? remember(queue_drain(handle, "cudaStreamSynchronize")) : OK;
}
static status emu_cudaDeviceSynchronize(void) { return config()->play ? remember(queue_drain_device(current_device(), "cudaDeviceSynchronize")) : OK; }

// ---- events
static status emu_cudaEventCreate(struct event **out) { return (*out = calloc(1, sizeof **out)) ? OK : remember(OUT_OF_MEMORY); }
static status emu_cudaEventCreateWithFlags(struct event **out, unsigned flags) { (void)flags; return emu_cudaEventCreate(out); }
static status emu_cudaEventDestroy(struct event *e) {
  if (e) event_free(e);
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
  int captured = e->capture != NULL;
  pthread_mutex_unlock(&capture_lock);
  if (r == OK && !captured && config()->play) r = queue_submit(handle, (struct work){.kind = WORK_RECORD, .event = e, .device = current_device()});
  return remember(r);
}
static status emu_cudaEventRecordWithFlags(struct event *e, void *handle, unsigned flags) {
  enum { EXTERNAL = 1 }; // a separate node that joins no stream
  if (!(flags & EXTERNAL)) return emu_cudaEventRecord(e, handle);
  return stream_submit(handle, (struct work){.kind = config()->play ? WORK_RECORD : WORK_MARK, .event = e});
}
// A stream that waits for an event of a capture joins that capture.
static status emu_cudaStreamWaitEvent(void *handle, struct event *e, unsigned flags) {
  enum { EXTERNAL = 1 };
  struct stream *s = stream_of(handle);
  if (!e) return remember(INVALID_HANDLE);
  if (flags & EXTERNAL) return stream_submit(handle, (struct work){.kind = config()->play ? WORK_AWAIT : WORK_MARK, .event = e});
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
  if (r == OK && !g && config()->play && !event_done(e))
    r = stream_submit(handle, (struct work){.kind = WORK_AWAIT, .event = e});
  return remember(r);
}
static status emu_cudaEventElapsedTime(float *ms, struct event *a, struct event *b) {
  *ms = config()->play ? (float)(event_seconds(a, b) * 1e3) : 0.001f;
  return OK;
}
static status emu_cudaEventQuery(struct event *e) { return config()->play && e && !event_done(e) ? NOT_READY : OK; }
static status emu_cudaEventSynchronize(struct event *e) {
  return config()->play && e ? remember(event_await(e)) : OK;
}

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
  (void)args;
  return kernel_submit(c->stream, (struct work){.function = f, .grid = c->grid[0], .block = c->block[0]}, extra);
}
status emu_cuLaunchKernel(const void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          void *stream, void **args, void **extra) {
  (void)gy; (void)gz; (void)by; (void)bz; (void)shared; (void)args;
  return kernel_submit(stream, (struct work){.function = f, .grid = gx, .block = bx}, extra);
}
// Stream memory operations. Without played kernels waits return at once, because the kernel or NIC that they wait for does nothing.
static status emu_cuStreamWriteValue32(void *stream, uint32_t *to, uint32_t value, unsigned flags) {
  (void)flags;
  return stream_submit(stream, (struct work){.kind = WORK_WRITE, .to = to, .word = value, .words32 = 1});
}
static status emu_cuStreamWriteValue64(void *stream, uint64_t *to, uint64_t value, unsigned flags) {
  (void)flags;
  return stream_submit(stream, (struct work){.kind = WORK_WRITE, .to = to, .word = value});
}
static status wait_submit(void *stream, void *at, uint64_t value, unsigned flags, int words32) {
  if (!config()->play) return OK;
  return stream_submit(stream, (struct work){.kind = WORK_WAIT_VALUE, .to = at, .word = value, .compare = (int)(flags & 3), .words32 = words32});
}
static status emu_cuStreamWaitValue32(void *stream, uint32_t *at, uint32_t value, unsigned flags) { return wait_submit(stream, at, value, flags, 1); }
static status emu_cuStreamWaitValue64(void *stream, uint64_t *at, uint64_t value, unsigned flags) { return wait_submit(stream, at, value, flags, 0); }
static status emu_cuStreamBatchMemOp(void) {
  if (config()->play) emu_not_emulated("cuStreamBatchMemOp");
  return config()->play ? NOT_SUPPORTED : OK;
}

const struct entry stream_entries[] = {
  ENTRY(cudaStreamCreate), ENTRY(cudaStreamCreateWithFlags), ENTRY(cudaStreamCreateWithPriority), ENTRY(cudaStreamDestroy), ENTRY(cudaStreamGetFlags),
  ENTRY(cudaStreamGetId), ENTRY(cudaStreamGetPriority), ENTRY(cudaDeviceGetStreamPriorityRange), ENTRY(cudaStreamQuery), ENTRY(cudaStreamSynchronize), ENTRY(cudaDeviceSynchronize), ENTRY(cudaEventCreate),
  ENTRY(cudaEventCreateWithFlags), ENTRY(cudaEventDestroy), ENTRY(cudaEventRecord), ENTRY(cudaEventRecordWithFlags), ENTRY(cudaStreamWaitEvent),
  ENTRY(cudaEventElapsedTime), ENTRY(cudaEventQuery), ENTRY(cudaEventSynchronize), ENTRY(cudaLaunchHostFunc),
  ENTRY(cudaLaunchKernel), ENTRY(cudaLaunchKernelExC), {0, 0}};
const struct entry stream_driver_entries[] = {
  ENTRY(cuLaunchKernel), ENTRY(cuLaunchKernelEx), ENTRY(cuStreamWriteValue32), ENTRY(cuStreamWriteValue64),
  ENTRY(cuStreamWaitValue32), ENTRY(cuStreamWaitValue64), ENTRY(cuStreamBatchMemOp), {0, 0}};
