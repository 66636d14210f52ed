// SPDX-License-Identifier: Apache-2.0
// NVML, which NCCL gets when it opens libnvidia-ml.so.1. NCCL takes the NVLinks from the topology file, so the functions for
// NVLinks return "not supported" (3).
#include "emu.h"
#include <stdio.h>
#include <string.h>

enum { NVML_NOT_SUPPORTED = 3, NVML_NOT_FOUND = 6, HANDLE = 0x4000 };
static int index_of(void *device) { return (int)((uintptr_t)device - HANDLE); }

PUBLIC status nvmlInit_v2(void) { return OK; }
PUBLIC status nvmlShutdown(void) { return OK; }
PUBLIC const char *nvmlErrorString(status s) { return s ? "error of the emulation" : "success"; }
PUBLIC status nvmlDeviceGetCount_v2(unsigned *n) { *n = (unsigned)config()->gpu_count; return OK; }
PUBLIC status nvmlDeviceGetCount(unsigned *n) { return nvmlDeviceGetCount_v2(n); }
PUBLIC status nvmlSystemGetDriverVersion(char *text, unsigned bytes) { snprintf(text, bytes, "580.00"); return OK; }
PUBLIC status nvmlDeviceGetName(void *device, char *text, unsigned bytes) {
  (void)device;
  snprintf(text, bytes, "Simulated GPU, compute capability %d", config()->compute_capability);
  return OK;
}
PUBLIC status nvmlDeviceGetHandleByIndex(unsigned i, void **device) {
  if (i >= (unsigned)config()->gpu_count) return NVML_NOT_FOUND;
  *device = (void *)(uintptr_t)(HANDLE + i);
  return OK;
}
PUBLIC status nvmlDeviceGetHandleByPciBusId(const char *bus_id, void **device) {
  int i = device_by_bus_id(bus_id, 0);
  return i < 0 ? NVML_NOT_FOUND : nvmlDeviceGetHandleByIndex((unsigned)i, device);
}
PUBLIC status nvmlDeviceGetIndex(void *device, unsigned *i) { *i = (unsigned)index_of(device); return OK; }
PUBLIC status nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  (void)device;
  *major = config()->compute_capability / 10;
  *minor = config()->compute_capability % 10;
  return OK;
}
PUBLIC status nvmlDeviceGetP2PStatus(void *a, void *b, int what, int *answer) {
  (void)a; (void)b; (void)what;
  *answer = config()->peer_to_peer ? 0 : 5; // 5: not supported
  return OK;
}
PUBLIC status nvmlDeviceGetNvLinkState(void *d, unsigned l, int *s) { (void)d; (void)l; (void)s; return NVML_NOT_SUPPORTED; }
PUBLIC status nvmlDeviceGetNvLinkCapability(void *d, unsigned l, int c, unsigned *r) { (void)d; (void)l; (void)c; (void)r; return NVML_NOT_SUPPORTED; }
PUBLIC status nvmlDeviceGetNvLinkRemotePciInfo(void *d, unsigned l, void *p) { (void)d; (void)l; (void)p; return NVML_NOT_SUPPORTED; }
PUBLIC status nvmlDeviceGetFieldValues(void *d, int n, void *v) { (void)d; (void)n; (void)v; return NVML_NOT_SUPPORTED; }
PUBLIC status nvmlDeviceGetNvLinkRemoteDeviceType(void *d, unsigned l, int *t) { (void)d; (void)l; (void)t; return NVML_NOT_SUPPORTED; }
PUBLIC status nvmlDeviceGetMemoryErrorCounter(void *d, int e, int c, int m, unsigned long long *n) { (void)d; (void)e; (void)c; (void)m; (void)n; return NVML_NOT_SUPPORTED; }
PUBLIC status nvmlDeviceGetPlatformInfo(void *d, void *v) { (void)d; (void)v; return NVML_NOT_SUPPORTED; }
PUBLIC status nvmlDeviceGetPcieLinkMaxSpeed(void *d, unsigned *s) { (void)d; *s = 32000; return OK; }
PUBLIC status nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *g) { (void)d; *g = 5; return OK; }
PUBLIC status nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *w) { (void)d; *w = 16; return OK; }
// Confidential computing is off. The settings begin with the version, which the caller has set.
PUBLIC status nvmlSystemGetConfComputeState(unsigned state[3]) { memset(state, 0, 3 * sizeof *state); return OK; }
PUBLIC status nvmlSystemGetConfComputeSettings(unsigned settings[5]) { memset(settings + 1, 0, 4 * sizeof *settings); return OK; }

// An NVLink domain across hosts (NVL72): all hosts have the same cluster UUID and clique.
struct fabric_info { unsigned version; unsigned char cluster_uuid[16]; int status; unsigned clique; unsigned char state; unsigned health; };
PUBLIC status nvmlDeviceGetGpuFabricInfoV(void *device, struct fabric_info *f) {
  (void)device;
  if (config()->fabric_clique < 0) return NVML_NOT_SUPPORTED;
  memset(f->cluster_uuid, 0xfa, sizeof f->cluster_uuid);
  memcpy(f->cluster_uuid, &config()->fabric_domain, sizeof config()->fabric_domain);
  f->status = 0;
  f->clique = (unsigned)config()->fabric_clique;
  f->state = 3; // completed
  f->health = 0;
  return OK;
}

struct pci_info { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
struct pci_info_ext { unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class; char bus_id[32]; };
enum { DEVICE_ID = 0x233010de, SUBSYSTEM_ID = 0x16c110de, DISPLAY_CONTROLLER = 3, CONTROLLER_3D = 2 };
PUBLIC status nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *p) {
  memset(p, 0, sizeof *p);
  const char *id = config()->bus_ids[index_of(device)];
  if (sscanf(id, "%x:%x:%x", &p->domain, &p->bus, &p->device) != 3) return NVML_NOT_FOUND;
  p->device_id = DEVICE_ID;
  p->subsystem_id = SUBSYSTEM_ID;
  snprintf(p->legacy, sizeof p->legacy, "%.15s", id);
  snprintf(p->bus_id, sizeof p->bus_id, "0000%s", id); // eight digits of domain
  return OK;
}
PUBLIC status nvmlDeviceGetPciInfoExt(void *device, struct pci_info_ext *p) {
  struct pci_info q;
  status s = nvmlDeviceGetPciInfo_v3(device, &q);
  if (s == OK) *p = (struct pci_info_ext){p->version, q.domain, q.bus, q.device, q.device_id, q.subsystem_id, DISPLAY_CONTROLLER, CONTROLLER_3D, {0}};
  if (s == OK) memcpy(p->bus_id, q.bus_id, sizeof p->bus_id);
  return s;
}
