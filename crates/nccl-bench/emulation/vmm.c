// SPDX-License-Identifier: Apache-2.0
// The driver's virtual memory management and multicast objects. A handle is a pointer to a reference-counted memfd. Processes
// share memory by POSIX handles, which are real file descriptors, and by fabric handles, which hold process and descriptor.
#include "emu.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { POSIX_HANDLE = 1, FABRIC_HANDLE = 8, FABRIC_HANDLE_BYTES = 64 };
struct properties { int type, handle_types, location_type, location; void *windows; unsigned char flags[8]; };
struct handle { int fd; size_t bytes, counted; struct properties properties; atomic_int references; }; // counted: bytes of the GPU's memory

static void release(struct handle *h) {
  if (atomic_fetch_sub(&h->references, 1) == 1) {
    close(h->fd);
    if (h->counted) memory_give_back(h->properties.location, h->counted);
    free(h);
  }
}

static status create(struct handle **out, int fd, size_t bytes, const struct properties *p) {
  struct handle *h = calloc(1, sizeof *h);
  if (!h || fd < 0) {
    if (fd >= 0) close(fd);
    free(h);
    return OUT_OF_MEMORY;
  }
  h->fd = fd;
  h->bytes = bytes;
  h->properties = *p;
  atomic_store(&h->references, 1);
  *out = h;
  return OK;
}

static status create_memory(struct handle **out, size_t bytes, const struct properties *p) {
  if ((p->handle_types & FABRIC_HANDLE) && config()->fabric_clique < 0) return NOT_SUPPORTED;
  int fd = memfd_create("linkwise-emulation-vmm", MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, (off_t)bytes)) { close(fd); fd = -1; }
  return create(out, fd, bytes, p);
}
static status emu_cuMemCreate(struct handle **out, size_t bytes, const struct properties *p, uint64_t flags) {
  enum { ON_DEVICE = 1 };
  (void)flags;
  int counts = p->location_type == ON_DEVICE && p->location >= 0 && p->location < GPUS_MAX;
  if (counts && !memory_take(p->location, bytes)) return OUT_OF_MEMORY;
  status s = create_memory(out, bytes, p);
  if (s == OK) (*out)->counted = counts ? bytes : 0;
  else if (counts) memory_give_back(p->location, bytes);
  return s;
}
static status emu_cuMemRelease(struct handle *h) {
  if (!h) return INVALID_VALUE;
  release(h);
  return OK;
}
static status emu_cuMemGetAllocationGranularity(size_t *bytes, const struct properties *p, int option) {
  (void)p; (void)option;
  *bytes = GRANULARITY;
  return OK;
}
static status emu_cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, uint64_t flags) {
  (void)hint; (void)flags;
  if (alignment < GRANULARITY) alignment = GRANULARITY;
  char *map = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return OUT_OF_MEMORY;
  uintptr_t begin = ((uintptr_t)map + alignment - 1) / alignment * alignment;
  if (begin > (uintptr_t)map) munmap(map, begin - (uintptr_t)map);
  munmap((void *)(begin + bytes), (uintptr_t)map + alignment - begin);
  struct range r = {begin, bytes, 0, -1, current_device(), RESERVATION, NULL, 0};
  if (!range_add(r)) return OUT_OF_MEMORY;
  *address = begin;
  return OK;
}
static status emu_cuMemAddressFree(uint64_t address, size_t bytes) {
  struct range r;
  if (!range_remove(address, RESERVATION, &r)) return INVALID_VALUE;
  munmap((void *)address, bytes);
  return OK;
}
static status emu_cuMemMap(uint64_t address, size_t bytes, size_t offset, struct handle *h, uint64_t flags) {
  (void)flags;
  void *p = mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, h->fd, (off_t)offset);
  if (p == MAP_FAILED) return INVALID_VALUE;
  atomic_fetch_add(&h->references, 1);
  struct range r = {address, bytes, offset, h->fd, h->properties.location, MAPPING, h, 0};
  return range_add(r) ? OK : OUT_OF_MEMORY;
}
static status emu_cuMemUnmap(uint64_t address, size_t bytes) {
  for (uint64_t end = address + bytes; address < end;) {
    struct range r;
    if (!range_remove(address, MAPPING, &r)) return INVALID_VALUE;
    mmap((void *)address, r.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    release(r.handle);
    address += r.bytes;
  }
  return OK;
}
static status emu_cuMemRetainAllocationHandle(struct handle **out, void *address) {
  struct range r;
  if (!range_find((uintptr_t)address, &r) || r.kind != MAPPING) return INVALID_VALUE;
  *out = r.handle;
  atomic_fetch_add(&(*out)->references, 1);
  return OK;
}
static status emu_cuMemExportToShareableHandle(void *out, struct handle *h, int type, uint64_t flags) {
  (void)flags;
  if (type == FABRIC_HANDLE && config()->fabric_clique >= 0) {
    int names[2] = {getpid(), h->fd};
    memset(out, 0, FABRIC_HANDLE_BYTES);
    memcpy(out, names, sizeof names);
    return OK;
  }
  if (type != POSIX_HANDLE) return NOT_SUPPORTED;
  int fd = fcntl(h->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return INVALID_VALUE;
  *(int *)out = fd;
  return OK;
}
static status emu_cuMemImportFromShareableHandle(struct handle **out, void *os_handle, int type) {
  int fd;
  if (type == FABRIC_HANDLE && config()->fabric_clique >= 0) {
    int names[2];
    char path[64];
    memcpy(names, os_handle, sizeof names);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", names[0], names[1]);
    fd = open(path, O_RDWR | O_CLOEXEC);
  } else if (type == POSIX_HANDLE) {
    fd = fcntl((int)(uintptr_t)os_handle, F_DUPFD_CLOEXEC, 0);
  } else {
    return NOT_SUPPORTED;
  }
  struct stat st;
  if (fd < 0 || fstat(fd, &st)) {
    if (fd >= 0) close(fd);
    return INVALID_VALUE;
  }
  struct properties p = {.type = 1, .handle_types = type, .location_type = 1, .location = current_device()};
  return create(out, fd, (size_t)st.st_size, &p);
}
static status emu_cuMemGetAllocationPropertiesFromHandle(struct properties *p, struct handle *h) { *p = h->properties; return OK; }
static status emu_cuMemGetAddressRange(uint64_t *begin, size_t *bytes, uint64_t address) {
  struct range r;
  if (!range_find(address, &r)) return NOT_FOUND;
  if (begin) *begin = r.begin;
  if (bytes) *bytes = r.bytes;
  return OK;
}
// DMA-BUF for NICs is not supported: the simulated NICs register plain pointers.
static status emu_cuMemGetHandleForAddressRange(void *out, uint64_t p, size_t bytes, int type, uint64_t flags) {
  (void)out; (void)p; (void)bytes; (void)type; (void)flags;
  return NOT_SUPPORTED;
}

// `attribute`: a number of CUpointer_attribute.
static status emu_cuPointerGetAttribute(void *out, int attribute, uint64_t p) {
  struct range r;
  int found = range_find(p, &r);
  switch (attribute) {
  case 1: *(void **)out = NULL; return OK;                                       // context
  case 6: return OK;                                                             // synchronous memory operations
  case 7: *(uint64_t *)out = found ? r.begin : 0; return OK;                     // buffer id
  case 8: *(int *)out = 0; return OK;                                            // managed
  case 10: *(int *)out = found && r.kind == DEVICE_MEMORY; return OK;            // legacy IPC
  case 14: *(uint64_t *)out = found && r.kind == MAPPING ? (uint64_t)((struct handle *)r.handle)->properties.handle_types : 0; return OK;
  }
  if (attribute != 2 && attribute != 3 && attribute != 4 && attribute != 9 && attribute != 11 && attribute != 12) {
    char what[64];
    snprintf(what, sizeof what, "cuPointerGetAttribute %d", attribute);
    emu_not_emulated(what);
    return NOT_SUPPORTED;
  }
  if (!found) return INVALID_VALUE;
  switch (attribute) {
  case 2: *(int *)out = r.kind == HOST_MEMORY || r.kind == REGISTERED_MEMORY ? 1 : 2; break;                    // memory type
  case 3: case 4: *(uint64_t *)out = p; break;                                   // device and host pointer
  case 9: *(int *)out = r.device; break;
  case 11: *(uint64_t *)out = r.begin; break;
  case 12: *(size_t *)out = r.bytes; break;
  }
  return OK;
}
static status emu_accept(void) { return OK; }

struct multicast { unsigned devices; size_t bytes; uint64_t handle_types, flags; };
static status emu_cuMulticastCreate(struct handle **out, const struct multicast *m) {
  struct properties p = {.type = 1, .handle_types = (int)m->handle_types, .location_type = 1, .location = current_device()};
  if (!config()->multicast) return NOT_SUPPORTED;
  return create_memory(out, m->bytes, &p);
}
static status emu_cuMulticastGetGranularity(size_t *bytes, const struct multicast *m, int option) {
  (void)m; (void)option;
  *bytes = GRANULARITY;
  return OK;
}

// Functions that programs find in libcuda.so.1 by name.
PUBLIC status cuPointerGetAttribute(void *out, int attribute, uint64_t p) { return emu_cuPointerGetAttribute(out, attribute, p); }
PUBLIC status cuMemGetAddressRange_v2(uint64_t *begin, size_t *bytes, uint64_t address) { return emu_cuMemGetAddressRange(begin, bytes, address); }

const struct entry vmm_entries[] = {
  ENTRY(cuMemCreate), ENTRY(cuMemRelease), ENTRY(cuMemGetAllocationGranularity), ENTRY(cuMemAddressReserve), ENTRY(cuMemAddressFree),
  ENTRY(cuMemMap), ENTRY(cuMemUnmap), ALIAS(cuMemSetAccess, emu_accept), ENTRY(cuMemRetainAllocationHandle),
  ENTRY(cuMemExportToShareableHandle), ENTRY(cuMemImportFromShareableHandle), ENTRY(cuMemGetAllocationPropertiesFromHandle),
  ENTRY(cuMemGetAddressRange), ENTRY(cuMemGetHandleForAddressRange), ENTRY(cuPointerGetAttribute), ALIAS(cuPointerSetAttribute, emu_accept),
  ENTRY(cuMulticastCreate), ENTRY(cuMulticastGetGranularity), ALIAS(cuMulticastAddDevice, emu_accept), ALIAS(cuMulticastBindMem, emu_accept),
  ALIAS(cuMulticastBindAddr, emu_accept), ALIAS(cuMulticastUnbind, emu_accept), {0, 0}};
