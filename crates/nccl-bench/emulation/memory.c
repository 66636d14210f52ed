// SPDX-License-Identifier: Apache-2.0
// Memory: a table of address ranges, each a mapping of a memfd, so that it is paged lazily and can be shared between
// processes (legacy IPC through /proc/PID/fd). All allocations of a process are parts of one file, which grows and is never reused.
#include "emu.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

// Sorted by address; NCCL keeps some hundred ranges per rank.
static struct range *ranges;
static size_t range_count, range_room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t whole_pages(size_t bytes) {
  size_t rounded = (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
  return rounded ? rounded : PAGE;
}

// Index of the first range that begins after `address`. Call with the lock held.
static size_t after(uintptr_t address) {
  size_t low = 0, high = range_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (ranges[middle].begin <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

int range_add(struct range r) {
  int ok = 1;
  pthread_mutex_lock(&lock);
  if (range_count == range_room) {
    size_t room = range_room ? range_room * 2 : 256;
    struct range *grown = realloc(ranges, room * sizeof *grown);
    if (grown) ranges = grown, range_room = room;
    else ok = 0;
  }
  if (ok) {
    size_t at = after(r.begin);
    memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
    ranges[at] = r;
    range_count++;
  }
  pthread_mutex_unlock(&lock);
  return ok;
}

// A mapping lies inside a reservation, and comes after it in the table: walk back to the nearest range that contains the address.
int range_find(uintptr_t address, struct range *out) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = after(address); i-- > 0 && !found;) {
    const struct range *r = &ranges[i];
    if (r->kind != RESERVATION && address - r->begin < r->bytes) *out = *r, found = 1;
    else if (r->kind != MAPPING) break; // only mappings lie inside a larger range, their reservation
  }
  pthread_mutex_unlock(&lock);
  return found;
}

int range_remove(uintptr_t begin, enum kind kind, struct range *out) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = after(begin); i-- > 0 && ranges[i].begin == begin;) {
    if (kind && ranges[i].kind != kind) continue;
    *out = ranges[i];
    memmove(ranges + i, ranges + i + 1, (range_count - i - 1) * sizeof *ranges);
    range_count--;
    found = 1;
    break;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

int memory_gpu(const void *p) {
  struct range r;
  if (!range_find((uintptr_t)p, &r) || r.kind == HOST_MEMORY || r.kind == REGISTERED_MEMORY) return -1;
  if (r.home) return r.home - 1;
  return r.device >= 0 && r.device < config()->visible_count ? config()->visible[r.device] : -1;
}

// A GPU's memory is limited; allocations of other processes on it do not count.
static size_t used[GPUS_MAX];
int memory_take(int device, size_t bytes) {
  pthread_mutex_lock(&lock);
  int fits = bytes <= config()->memory_bytes && used[device] <= config()->memory_bytes - bytes;
  if (fits) used[device] += bytes;
  pthread_mutex_unlock(&lock);
  return fits;
}
void memory_give_back(int device, size_t bytes) {
  pthread_mutex_lock(&lock);
  used[device] -= bytes;
  pthread_mutex_unlock(&lock);
}

// A new part of the process's file. A child after fork() begins a file of its own, since its parent goes on with the other one.
static int grow(size_t bytes, size_t *offset) {
  static int fd = -1, owner;
  static size_t end;
  pthread_mutex_lock(&lock);
  if (owner != getpid()) {
    fd = memfd_create("linkwise-emulation", MFD_CLOEXEC);
    owner = getpid();
    end = 0;
  }
  int ok = fd >= 0 && !ftruncate(fd, (off_t)(end + bytes));
  *offset = end;
  if (ok) end += bytes;
  pthread_mutex_unlock(&lock);
  return ok ? fd : -1;
}

static status allocate(void **out, size_t bytes, size_t mapped, enum kind kind) {
  size_t offset;
  int fd = grow(mapped, &offset);
  void *p = fd < 0 ? MAP_FAILED : mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)offset);
  if (p == MAP_FAILED) return OUT_OF_MEMORY;
  struct range r = {(uintptr_t)p, bytes ? bytes : 1, offset, fd, current_device(), kind, NULL, 0};
  if (!range_add(r)) { munmap(p, mapped); return OUT_OF_MEMORY; }
  *out = p;
  return OK;
}
status memory_allocate(void **out, size_t bytes, enum kind kind) {
  size_t mapped = whole_pages(bytes);
  *out = NULL;
  if (mapped < bytes || (kind == DEVICE_MEMORY && !memory_take(current_device(), mapped))) return OUT_OF_MEMORY;
  status s = allocate(out, bytes, mapped, kind);
  if (s && kind == DEVICE_MEMORY) memory_give_back(current_device(), mapped);
  return s;
}

status memory_free(void *p) {
  struct range r;
  if (!p) return OK;
  if (!range_find((uintptr_t)p, &r) || r.kind == MAPPING || r.kind == REGISTERED_MEMORY || !range_remove((uintptr_t)p, r.kind, &r)) return INVALID_VALUE;
  size_t mapped = whole_pages(r.bytes);
  if (r.kind == IMPORTED_MEMORY) close(r.fd);
  else fallocate(r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)r.offset, (off_t)mapped);
  munmap((void *)r.begin, mapped);
  if (r.kind == DEVICE_MEMORY) memory_give_back(r.device, mapped);
  return OK;
}

// Zeroing punches whole pages out instead of touching them: NCCL zeroes gigabytes.
static int punch(const struct range *r, uintptr_t from, uintptr_t to) {
  off_t at = (off_t)(r->offset + (from - r->begin));
  return fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, (off_t)(to - from));
}
void memory_fill(void *p, int value, size_t bytes) {
  for (uintptr_t at = (uintptr_t)p, end = at + bytes; at < end;) { // one range after the other
    struct range r;
    int found = range_find(at, &r);
    uintptr_t stop = found && r.begin + r.bytes < end ? r.begin + r.bytes : end;
    uintptr_t from = (at + PAGE - 1) & ~(uintptr_t)(PAGE - 1), to = stop & ~(uintptr_t)(PAGE - 1);
    if (value == 0 && found && r.fd >= 0 && to > from && to - from >= 16 * PAGE && punch(&r, from, to) == 0) {
      memset((void *)at, 0, from - at);
      memset((void *)to, 0, stop - to);
    } else {
      memset((void *)at, value, stop - at);
    }
    at = stop;
  }
}

// ---- runtime
static status emu_cudaMalloc(void **p, size_t bytes) { return remember(memory_allocate(p, bytes, DEVICE_MEMORY)); }
// As on a GPU, work that may use the memory ends first.
static status emu_cudaFree(void *p) {
  struct range r;
  status s = p && config()->play && range_find((uintptr_t)p, &r) ? queue_drain_device(r.device, "cudaFree") : OK;
  return remember(s ? s : memory_free(p));
}
static status emu_cudaHostAlloc(void **p, size_t bytes, unsigned flags) { (void)flags; return remember(memory_allocate(p, bytes, HOST_MEMORY)); }
static status emu_cudaMallocHost(void **p, size_t bytes) { return emu_cudaHostAlloc(p, bytes, 0); }
static status emu_cudaMallocAsync(void **p, size_t bytes, void *stream) { (void)stream; return emu_cudaMalloc(p, bytes); }
static status emu_cudaMallocFromPoolAsync(void **p, size_t bytes, void *pool, void *stream) { (void)pool; return emu_cudaMallocAsync(p, bytes, stream); }
// In a capture the memory stays: every launch of the graph uses it.
static status emu_cudaFreeAsync(void *p, void *stream) {
  struct range r;
  if (!p || stream_captured(stream)) return OK;
  if (!range_find((uintptr_t)p, &r) || r.begin != (uintptr_t)p) return remember(INVALID_VALUE);
  return stream_submit(stream, (struct work){.kind = WORK_FREE, .to = p});
}
static status emu_cudaMemPoolCreate(void **pool, const void *properties) { (void)properties; return (*pool = malloc(1)) ? OK : OUT_OF_MEMORY; }
static status emu_cudaMemPoolDestroy(void *pool) { free(pool); return OK; }
// Memory of the program that a GPU may read: NCCL's shared memory between ranks.
static status emu_cudaHostRegister(void *p, size_t bytes, unsigned flags) {
  (void)flags;
  struct range r = {(uintptr_t)p, bytes, 0, -1, current_device(), REGISTERED_MEMORY, NULL, 0};
  return range_add(r) ? OK : remember(OUT_OF_MEMORY);
}
static status emu_cudaHostUnregister(void *p) {
  struct range r;
  return range_remove((uintptr_t)p, REGISTERED_MEMORY, &r) ? OK : remember(INVALID_VALUE);
}
static status emu_cudaHostGetDevicePointer(void **device, void *host, unsigned flags) { (void)flags; *device = host; return OK; }
static status emu_accept(void) { return OK; }
static status emu_cudaMemGetInfo(size_t *unused, size_t *total) {
  pthread_mutex_lock(&lock);
  *total = config()->memory_bytes;
  *unused = *total - used[current_device()];
  pthread_mutex_unlock(&lock);
  return OK;
}
// A copy from pageable memory reads it before the call returns, and one into pageable memory is complete then; not so in a capture, whose graph
// copies at every launch.
static status copy(void *to, const void *from, size_t bytes, void *stream, int waits) {
  struct work w = {.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes};
  struct range r;
  int now = config()->play && bytes && !stream_captured(stream);
  if (now && !range_find((uintptr_t)to, &r)) waits = 1;
  else if (now && !waits && !range_find((uintptr_t)from, &r)) {
    if (!(w.bytes_of_work = malloc(bytes))) return remember(OUT_OF_MEMORY);
    memcpy(w.bytes_of_work, from, bytes);
  }
  if (now && lane_of(to, from) == LANE_ABSENT) {
    emu_log(0, "a copy from GPU %d to GPU %d, which no link joins", memory_gpu(from), memory_gpu(to));
    free(w.bytes_of_work);
    return remember(INVALID_VALUE);
  }
  status s = stream_submit(stream, w);
  return now && waits && s == OK ? remember(queue_drain(stream, "cudaMemcpy")) : s;
}
static status emu_cudaMemcpyAsync(void *to, const void *from, size_t bytes, int direction, void *stream) {
  (void)direction;
  return copy(to, from, bytes, stream, 0);
}
status queue_copy(void *to, const void *from, size_t bytes, void *stream) { return copy(to, from, bytes, stream, 0); }
static int on_device(const void *p) {
  struct range r;
  return range_find((uintptr_t)p, &r) && r.kind != HOST_MEMORY && r.kind != REGISTERED_MEMORY;
}
static status emu_cudaMemcpy(void *to, const void *from, size_t bytes, int direction) {
  (void)direction;
  return copy(to, from, bytes, NULL, !(on_device(to) && on_device(from))); // between GPUs the host does not wait
}
static status emu_cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
  return stream_submit(stream, (struct work){.kind = WORK_FILL, .to = to, .value = value, .bytes = bytes});
}
static status emu_cudaMemset(void *to, int value, size_t bytes) { return emu_cudaMemsetAsync(to, value, bytes, NULL); }

// Legacy IPC: 64 opaque bytes, here the exporter's process and file descriptor.
struct ipc_handle { int pid, fd; size_t bytes, offset; int gpu; char unused[36]; };
static status emu_cudaIpcGetMemHandle(struct ipc_handle *h, void *p) {
  struct range r;
  if (!range_find((uintptr_t)p, &r) || r.kind != DEVICE_MEMORY) return remember(INVALID_VALUE);
  memset(h, 0, sizeof *h);
  h->pid = getpid();
  h->fd = r.fd;
  h->bytes = r.bytes;
  h->offset = r.offset;
  h->gpu = memory_gpu(p);
  return OK;
}
static status emu_cudaIpcOpenMemHandle(void **p, struct ipc_handle h, unsigned flags) {
  (void)flags;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return remember(INVALID_VALUE);
  *p = mmap(NULL, whole_pages(h.bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, (off_t)h.offset);
  if (*p == MAP_FAILED) { close(fd); return remember(OUT_OF_MEMORY); }
  struct range r = {(uintptr_t)*p, h.bytes, h.offset, fd, current_device(), IMPORTED_MEMORY, NULL, h.gpu + 1};
  return range_add(r) ? OK : remember(OUT_OF_MEMORY);
}
static status emu_cudaIpcCloseMemHandle(void *p) { return remember(memory_free(p)); }

struct pointer_attributes { int type, device; void *on_device, *on_host; };
static status emu_cudaPointerGetAttributes(struct pointer_attributes *a, const void *p) {
  struct range r;
  if (!range_find((uintptr_t)p, &r)) *a = (struct pointer_attributes){0, -2, NULL, NULL};
  else if (r.kind == HOST_MEMORY || r.kind == REGISTERED_MEMORY) *a = (struct pointer_attributes){1, r.device, (void *)p, (void *)p};
  else *a = (struct pointer_attributes){2, r.device, (void *)p, NULL};
  return OK;
}

const struct entry memory_entries[] = {
  ENTRY(cudaMalloc), ENTRY(cudaFree), ENTRY(cudaHostAlloc), ENTRY(cudaMallocHost), ALIAS(cudaFreeHost, emu_cudaFree), ENTRY(cudaMallocAsync),
  ENTRY(cudaMallocFromPoolAsync), ENTRY(cudaFreeAsync), ENTRY(cudaMemPoolCreate), ENTRY(cudaMemPoolDestroy),
  ALIAS(cudaMemPoolSetAttribute, emu_accept), ALIAS(cudaMemPoolTrimTo, emu_accept), ALIAS(cudaMemPoolSetAccess, emu_accept), ENTRY(cudaHostRegister), ENTRY(cudaHostUnregister), ENTRY(cudaHostGetDevicePointer),
  ENTRY(cudaMemGetInfo), ENTRY(cudaMemcpy), ENTRY(cudaMemcpyAsync), ENTRY(cudaMemset), ENTRY(cudaMemsetAsync), ENTRY(cudaIpcGetMemHandle),
  ENTRY(cudaIpcOpenMemHandle), ENTRY(cudaIpcCloseMemHandle), ENTRY(cudaPointerGetAttributes), {0, 0}};
