// SPDX-License-Identifier: Apache-2.0
// Devices: selection, attributes, properties, contexts, errors.
#include "emu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread int t_device, t_error, t_capture_mode;

int current_device(void) { return t_device; }
status remember(status s) {
  if (s) t_error = s;
  return s;
}
static int known(int device) { return device >= 0 && device < config()->visible_count; }
static const char *bus_id(int device) { return config()->bus_ids[config()->visible[device]]; }

status select_device(int device) {
  if (!known(device)) return remember(INVALID_DEVICE);
  t_device = device;
  return OK;
}

struct place { unsigned domain, bus, device; };
static int parse_bus_id(const char *text, struct place *p) {
  return sscanf(text, "%x:%x:%x", &p->domain, &p->bus, &p->device) == 3;
}

int device_by_bus_id(const char *text, int among_visible) {
  struct place wanted, p;
  if (!text || !parse_bus_id(text, &wanted)) return -1;
  int n = among_visible ? config()->visible_count : config()->gpu_count;
  for (int i = 0; i < n; i++) {
    const char *have = among_visible ? bus_id(i) : config()->bus_ids[i];
    if (parse_bus_id(have, &p) && p.domain == wanted.domain && p.bus == wanted.bus && p.device == wanted.device) return i;
  }
  return -1;
}

// `attribute`: a number of CUdevice_attribute, the same in runtime and driver.
status device_attribute(int *value, int attribute, int device) {
  if (!known(device)) return remember(INVALID_DEVICE);
  const struct config *c = config();
  struct place p = {0, 0, 0};
  parse_bus_id(bus_id(device), &p);
  switch (attribute) {
  case 1: case 2: case 3: *value = 1024; break;                // threads per block; block x, y
  case 4: *value = 64; break;                                  // block z
  case 5: *value = 0x7fffffff; break;                          // grid x
  case 6: case 7: *value = 65535; break;                       // grid y, z
  case 8: *value = 49152; break;                               // shared memory per block
  case 10: *value = 32; break;                                 // warp
  case 12: case 82: *value = 65536; break;                     // registers per block, per multiprocessor
  case 13: *value = 1980000; break;                            // clock, kHz
  case 16: *value = c->multiprocessors; break;
  case 33: *value = (int)p.bus; break;
  case 34: *value = (int)p.device; break;
  case 50: *value = (int)p.domain; break;
  case 39: *value = 2048; break;                               // threads per multiprocessor
  case 40: *value = 2; break;                                  // copy engines
  case 41: *value = 1; break;                                  // unified addressing
  case 75: *value = c->compute_capability / 10; break;
  case 76: *value = c->compute_capability % 10; break;
  case 81: *value = c->compute_capability >= 90 ? 233472 : 167936; break; // shared memory per multiprocessor
  case 97: *value = c->compute_capability >= 90 ? 232448 : 166912; break; // ... per block, opt-in
  case 95: *value = 1; break;                                  // cooperative launch
  case 92: case 93: case 94: case 122: case 123: *value = 1; break; // stream memory operations
  case 102: case 103: *value = 1; break;                       // VMM, POSIX file descriptors
  case 110: case 116: case 117: *value = 1; break;             // GPUDirect RDMA with VMM, GPUDirect RDMA, flush options
  case 118: *value = 200; break;                               // RDMA writes ordered for all devices
  case 115: *value = 1; break;                                 // memory pools
  case 126: *value = 4; break;
  case 128: *value = c->fabric_clique >= 0; break;             // fabric handles
  case 132: *value = c->multicast; break;
  case 131: case 134: *value = 0; break;
  case 141: *value = 1; break;
  default:
    *value = 0;
    emu_log(2, "device attribute %d: 0", attribute);
  }
  return OK;
}

// Differs between simulated hosts, because NCCL compares UUIDs to find ranks that share a GPU.
void device_uuid(unsigned char uuid[16], int device) {
  const char *host = getenv("NCCL_HOSTID");
  uint64_t hash = 1469598103934665603ull;
  for (; host && *host; host++) hash = (hash ^ (unsigned char)*host) * 1099511628211ull;
  memset(uuid, 0, 16);
  memcpy(uuid, "EMU", 3);
  memcpy(uuid + 4, &hash, 8);
  uuid[15] = (unsigned char)(config()->visible[device] + 1);
}

// ---- runtime
static status emu_cudaGetDeviceCount(int *n) { *n = config()->visible_count; return OK; }
static status emu_cudaGetDevice(int *device) { *device = t_device; return OK; }
static status emu_cudaSetDevice(int device) { return select_device(device); }
static status emu_cudaDriverGetVersion(int *version) { *version = config()->driver_version; return OK; }
static status emu_cudaDeviceGetAttribute(int *v, int attribute, int device) { return remember(device_attribute(v, attribute, device)); }
static status emu_cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
  if (!known(device)) return remember(INVALID_DEVICE);
  snprintf(text, (size_t)bytes, "%s", bus_id(device));
  return OK;
}
static status emu_cudaDeviceGetByPCIBusId(int *device, const char *text) {
  int found = device_by_bus_id(text, 1);
  if (found < 0) return remember(INVALID_DEVICE);
  *device = found;
  return OK;
}
static status emu_cudaDeviceCanAccessPeer(int *can, int a, int b) {
  if (!known(a) || !known(b)) return remember(INVALID_DEVICE);
  *can = a != b && config()->peer_to_peer;
  return OK;
}
static status emu_cudaGetLastError(void) { status e = t_error; t_error = OK; return e; }
static status emu_cudaPeekAtLastError(void) { return t_error; }
static const char *emu_cudaGetErrorString(int e) {
  return e == OK ? "no error" : e == NOT_SUPPORTED ? "operation not supported (emulation)" : "error of the emulation";
}
static const char *emu_cudaGetErrorName(int e) { return e ? "cudaErrorEmulation" : "cudaSuccess"; }
static status emu_cudaThreadExchangeStreamCaptureMode(int *mode) {
  int old = t_capture_mode;
  t_capture_mode = *mode;
  *mode = old;
  return OK;
}
static status emu_accept(void) { return OK; }

// The leading fields of cudaDeviceProp, the same in CUDA 12 and 13; NCCL reads no further.
struct properties {
  char name[256]; unsigned char uuid[16]; char luid[8]; unsigned node_mask;
  size_t memory, shared; int registers, warp; size_t pitch; int threads_max, block_max[3], grid_max[3];
};
static status emu_cudaGetDeviceProperties(struct properties *p, int device) {
  if (!known(device)) return remember(INVALID_DEVICE);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "Simulated GPU, compute capability %d", config()->compute_capability);
  device_uuid(p->uuid, device);
  p->memory = config()->memory_bytes;
  p->shared = 49152;
  p->registers = 65536;
  p->warp = 32;
  p->threads_max = 1024;
  return OK;
}
struct function_attributes { size_t shared, constant, local; int threads_max, registers, ptx, binary, cache_ca, dynamic_max, preferred; };
static status emu_cudaFuncGetAttributes(struct function_attributes *a, const void *function) {
  (void)function;
  memset(a, 0, sizeof *a);
  a->threads_max = 640;
  a->registers = 96;
  a->ptx = a->binary = config()->compute_capability;
  a->dynamic_max = config()->compute_capability >= 90 ? 232448 : 166912;
  return OK;
}
static status emu_cudaGetFuncBySymbol(void **function, const void *symbol) { *function = (void *)symbol; return OK; }

const struct entry device_entries[] = {
  ENTRY(cudaGetDeviceCount), ENTRY(cudaGetDevice), ENTRY(cudaSetDevice), ENTRY(cudaDriverGetVersion), ENTRY(cudaDeviceGetAttribute),
  ENTRY(cudaDeviceGetPCIBusId), ENTRY(cudaDeviceGetByPCIBusId), ENTRY(cudaDeviceCanAccessPeer), ENTRY(cudaGetLastError),
  ENTRY(cudaPeekAtLastError), ENTRY(cudaGetErrorString), ENTRY(cudaGetErrorName), ENTRY(cudaThreadExchangeStreamCaptureMode),
  ENTRY(cudaGetDeviceProperties), ALIAS(cudaGetDeviceProperties_v2, emu_cudaGetDeviceProperties), ENTRY(cudaFuncGetAttributes),
  ENTRY(cudaGetFuncBySymbol), ALIAS(cudaFuncSetAttribute, emu_accept),
  ALIAS(cudaDeviceSetLimit, emu_accept), ALIAS(cudaDeviceEnablePeerAccess, emu_accept), ALIAS(cudaDeviceDisablePeerAccess, emu_accept),
  {0, 0}};

// ---- driver; a context is its device's number plus an offset, so that none is NULL
enum { CONTEXT = 0x1000 };
static void *context(int device) { return (void *)(uintptr_t)(CONTEXT + device); }
static status emu_cuInit(unsigned flags) { (void)flags; return OK; }
static status emu_cuDriverGetVersion(int *v) { *v = config()->driver_version; return OK; }
static status emu_cuDeviceGet(int *device, int ordinal) {
  if (!known(ordinal)) return INVALID_DEVICE;
  *device = ordinal;
  return OK;
}
static status emu_cuDeviceGetCount(int *n) { *n = config()->visible_count; return OK; }
static status emu_cuDeviceGetAttribute(int *v, int attribute, int device) { return device_attribute(v, attribute, device); }
static status emu_cuDeviceGetUuid(unsigned char *uuid, int device) {
  if (!known(device)) return INVALID_DEVICE;
  device_uuid(uuid, device);
  return OK;
}
static status emu_cuDeviceGetName(char *name, int bytes, int device) {
  (void)device;
  snprintf(name, (size_t)bytes, "Simulated GPU, compute capability %d", config()->compute_capability);
  return OK;
}
static status emu_cuDeviceTotalMem(size_t *bytes, int device) { (void)device; *bytes = config()->memory_bytes; return OK; }
static status emu_cuGetErrorString(int e, const char **text) { *text = emu_cudaGetErrorString(e); return OK; }
static status emu_cuGetErrorName(int e, const char **text) { *text = emu_cudaGetErrorName(e); return OK; }
static status emu_cuCtxCreate(void **c) { *c = context(t_device); return OK; } // other arguments differ between versions
static status emu_cuCtxGetCurrent(void **c) { *c = context(t_device); return OK; }
static status emu_cuCtxGetDevice(int *device) { *device = t_device; return OK; }
static status emu_cuCtxSetCurrent(void *c) {
  uintptr_t device = (uintptr_t)c - CONTEXT;
  if (device < GPUS_MAX) t_device = (int)device;
  return OK;
}
static status emu_cuDevicePrimaryCtxRetain(void **c, int device) { *c = context(device); return OK; }

const struct entry driver_entries[] = {
  ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuDeviceGet), ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGetAttribute),
  ENTRY(cuDeviceGetUuid), ENTRY(cuDeviceGetName), ENTRY(cuDeviceTotalMem), ENTRY(cuGetErrorString), ENTRY(cuGetErrorName),
  ENTRY(cuCtxCreate), ALIAS(cuCtxDestroy, emu_accept), ENTRY(cuCtxGetCurrent), ENTRY(cuCtxSetCurrent), ENTRY(cuCtxGetDevice),
  ENTRY(cuDevicePrimaryCtxRetain), ALIAS(cuDevicePrimaryCtxRelease, emu_accept), {0, 0}};
