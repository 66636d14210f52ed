// SPDX-License-Identifier: Apache-2.0
// Memory: a table of address ranges, each a mapping of a memfd, so that it is paged lazily and can be shared between
// processes (legacy IPC through /proc/PID/fd).
#include "emu.h"
#include <errno.h>
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

status memory_allocate(void **out, size_t bytes, enum kind kind) {
  *out = NULL;
  int fd = memfd_create("linkwise-emulation", MFD_CLOEXEC);
  if (fd < 0) return OUT_OF_MEMORY;
  size_t mapped = whole_pages(bytes);
  if (ftruncate(fd, (off_t)mapped)) { close(fd); return OUT_OF_MEMORY; }
  void *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED) { close(fd); return OUT_OF_MEMORY; }
  struct range r = {(uintptr_t)p, bytes ? bytes : 1, 0, fd, current_device(), kind, NULL};
  if (!range_add(r)) { munmap(p, mapped); close(fd); return OUT_OF_MEMORY; }
  *out = p;
  return OK;
}

status memory_free(void *p) {
  struct range r;
  if (!p) return OK;
  if (!range_find((uintptr_t)p, &r) || r.kind == MAPPING || r.kind == REGISTERED_MEMORY || !range_remove((uintptr_t)p, r.kind, &r)) return INVALID_VALUE;
  munmap((void *)r.begin, whole_pages(r.bytes));
  close(r.fd);
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
static status emu_cudaFree(void *p) { return remember(memory_free(p)); }
static status emu_cudaHostAlloc(void **p, size_t bytes, unsigned flags) { (void)flags; return remember(memory_allocate(p, bytes, HOST_MEMORY)); }
static status emu_cudaMallocHost(void **p, size_t bytes) { return emu_cudaHostAlloc(p, bytes, 0); }
static status emu_cudaMallocAsync(void **p, size_t bytes, void *stream) { (void)stream; return emu_cudaMalloc(p, bytes); }
static status emu_cudaMallocFromPoolAsync(void **p, size_t bytes, void *pool, void *stream) { (void)pool; return emu_cudaMallocAsync(p, bytes, stream); }
static status emu_cudaFreeAsync(void *p, void *stream) { (void)stream; return emu_cudaFree(p); }
static status emu_cudaMemPoolCreate(void **pool, const void *properties) { (void)properties; return (*pool = malloc(1)) ? OK : OUT_OF_MEMORY; }
static status emu_cudaMemPoolDestroy(void *pool) { free(pool); return OK; }
// Memory of the program that a GPU may read: NCCL's shared memory between ranks.
static status emu_cudaHostRegister(void *p, size_t bytes, unsigned flags) {
  (void)flags;
  struct range r = {(uintptr_t)p, bytes, 0, -1, current_device(), REGISTERED_MEMORY, NULL};
  return range_add(r) ? OK : remember(OUT_OF_MEMORY);
}
static status emu_cudaHostUnregister(void *p) {
  struct range r;
  return range_remove((uintptr_t)p, REGISTERED_MEMORY, &r) ? OK : remember(INVALID_VALUE);
}
static status emu_cudaHostGetDevicePointer(void **device, void *host, unsigned flags) { (void)flags; *device = host; return OK; }
static status emu_accept(void) { return OK; }
static status emu_cudaMemGetInfo(size_t *unused, size_t *total) { *unused = *total = config()->memory_bytes; return OK; }
static status emu_cudaMemcpyAsync(void *to, const void *from, size_t bytes, int direction, void *stream) {
  (void)direction;
  struct work w = {.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes};
  struct range r;
  if (config()->play && bytes && !range_find((uintptr_t)to, &r)) { // into pageable memory: complete when the call returns
    status s = queue_drain(stream);
    if (s == OK) memmove(to, from, bytes);
    return remember(s);
  }
  if (config()->play && bytes && !range_find((uintptr_t)from, &r)) { // from pageable memory: read before the call returns
    if (!(w.bytes_of_work = malloc(bytes))) return remember(OUT_OF_MEMORY);
    memcpy(w.bytes_of_work, from, bytes);
  }
  return stream_submit(stream, w);
}
static status emu_cudaMemcpy(void *to, const void *from, size_t bytes, int direction) {
  (void)direction;
  if (config()->play) queue_drain(NULL);
  if (bytes) memmove(to, from, bytes);
  return OK;
}
static status emu_cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
  return stream_submit(stream, (struct work){.kind = WORK_FILL, .to = to, .value = value, .bytes = bytes});
}
static status emu_cudaMemset(void *to, int value, size_t bytes) { memory_fill(to, value, bytes); return OK; }

// Legacy IPC: 64 opaque bytes, here the exporter's process and file descriptor.
struct ipc_handle { int pid, fd; size_t bytes; char unused[48]; };
static status emu_cudaIpcGetMemHandle(struct ipc_handle *h, void *p) {
  struct range r;
  if (!range_find((uintptr_t)p, &r) || r.kind != DEVICE_MEMORY) return remember(INVALID_VALUE);
  memset(h, 0, sizeof *h);
  h->pid = getpid();
  h->fd = r.fd;
  h->bytes = r.bytes;
  return OK;
}
static status emu_cudaIpcOpenMemHandle(void **p, struct ipc_handle h, unsigned flags) {
  (void)flags;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return remember(INVALID_VALUE);
  *p = mmap(NULL, whole_pages(h.bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (*p == MAP_FAILED) { close(fd); return remember(OUT_OF_MEMORY); }
  struct range r = {(uintptr_t)*p, h.bytes, 0, fd, current_device(), IMPORTED_MEMORY, NULL};
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
