// SPDX-License-Identifier: Apache-2.0
// An NCCL net plugin (v8, v9, v10) with the NICs of a simulated host: LINKWISE_EMU_NICS="name,bus id,Mbit/s;...". With
// LINKWISE_EMU_GPUDIRECT=0 the NICs reach only host memory.
// Connections succeed at once and transfer no bytes. NCCL's cost model sees the NICs' real speeds.
// Layouts: the used part of NCCL's published plugin interface (ext-net).
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result; // ncclResult_t
enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5, NICS_MAX = 64, HOST_POINTERS = 1, CUDA_POINTERS = 2 };

struct nic { char name[64], path[96]; int mbit_per_s; };
static struct nic nics[NICS_MAX];
static int nic_count, gpudirect;

static result read_nics(void) {
  const char *direct = getenv("LINKWISE_EMU_GPUDIRECT");
  gpudirect = !direct || strcmp(direct, "0");
  nic_count = 0;
  const char *s = getenv("LINKWISE_EMU_NICS");
  while (s && *s) {
    struct nic n;
    char bus_id[32];
    int used = 0;
    if (nic_count == NICS_MAX || sscanf(s, "%63[^,],%31[^,],%d%n", n.name, bus_id, &n.mbit_per_s, &used) != 3) return INVALID_USAGE;
    snprintf(n.path, sizeof n.path, "/sys/devices/simulated/%s", bus_id); // NCCL looks up the last component in the topology file
    nics[nic_count++] = n;
    s += used;
    if (*s == ';') s++;
  }
  return SUCCESS;
}

struct virtual_nic { int count, devices[4]; };
struct properties8 {
  char *name, *path; uint64_t guid; int pointers, register_globally, speed, port; float latency;
  int connections_max, receives_max, device_type, device_version;
};
struct properties10 { // v9 is the same
  char *name, *path; uint64_t guid; int pointers, register_globally, force_flush, speed, port; float latency;
  int connections_max, receives_max, device_type, device_version; struct virtual_nic virtual_nic; size_t p2p_bytes_max, collective_bytes_max;
};
enum { CONNECTIONS_MAX = 131072, RECEIVES_MAX = 8 };

static result get_properties10(int device, struct properties10 *p) {
  if (device < 0 || device >= nic_count) return INVALID_USAGE;
  memset(p, 0, sizeof *p);
  p->name = nics[device].name;
  p->path = nics[device].path;
  p->guid = 0x11000000u + (unsigned)device;
  p->pointers = HOST_POINTERS | (gpudirect ? CUDA_POINTERS : 0);
  p->register_globally = 1;
  p->speed = nics[device].mbit_per_s;
  p->port = 1;
  p->connections_max = CONNECTIONS_MAX;
  p->receives_max = RECEIVES_MAX;
  p->virtual_nic.count = 1;
  p->virtual_nic.devices[0] = device;
  p->p2p_bytes_max = p->collective_bytes_max = 1ul << 40;
  return SUCCESS;
}
static result get_properties8(int device, struct properties8 *p) {
  struct properties10 q;
  result r = get_properties10(device, &q);
  if (r == SUCCESS)
    *p = (struct properties8){q.name, q.path, q.guid, q.pointers, q.register_globally, q.speed, q.port, q.latency, q.connections_max, q.receives_max, 0, 0};
  return r;
}

static result init8(void *logger) { (void)logger; return read_nics(); }
static result init10(void *logger, void *profiler) { (void)logger; (void)profiler; return read_nics(); }
static result devices(int *n) { *n = nic_count; return SUCCESS; }
static result object(void **out) { return (*out = calloc(1, sizeof(size_t))) ? SUCCESS : SYSTEM_ERROR; }
static result net_listen(int device, void *handle, void **comm) { (void)device; memset(handle, 0, 128); return object(comm); }
static result net_connect8(int device, void *handle, void **comm, void **device_comm) {
  (void)device; (void)handle;
  if (device_comm) *device_comm = NULL;
  return object(comm);
}
static result net_connect10(int device, void *config, void *handle, void **comm, void **device_comm) {
  (void)config;
  return net_connect8(device, handle, comm, device_comm);
}
static result net_accept(void *listener, void **comm, void **device_comm) {
  (void)listener;
  if (device_comm) *device_comm = NULL;
  return object(comm);
}
static result register_memory(void *comm, void *data, size_t bytes, int type, void **handle) {
  (void)comm; (void)data; (void)bytes; (void)type;
  return object(handle);
}
static result register_dma_buf(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd, void **handle) {
  (void)offset; (void)fd;
  return register_memory(comm, data, bytes, type, handle);
}
static result deregister_memory(void *comm, void *handle) { (void)comm; free(handle); return SUCCESS; }
// A request is the number of its bytes and is complete at once.
static result request(void **out, size_t bytes) {
  result r = object(out);
  if (r == SUCCESS) memcpy(*out, &bytes, sizeof bytes);
  return r;
}
static result send8(void *comm, void *data, int bytes, int tag, void *handle, void **out) {
  (void)comm; (void)data; (void)tag; (void)handle;
  return request(out, (size_t)bytes);
}
static result receive8(void *comm, int n, void **data, int *bytes, int *tags, void **handles, void **out) {
  (void)comm; (void)data; (void)tags; (void)handles;
  return request(out, n > 0 ? (size_t)bytes[0] : 0);
}
static result send9(void *comm, void *data, size_t bytes, int tag, void *handle, void **out) {
  (void)comm; (void)data; (void)tag; (void)handle;
  return request(out, bytes);
}
static result receive9(void *comm, int n, void **data, size_t *bytes, int *tags, void **handles, void **out) {
  (void)comm; (void)data; (void)tags; (void)handles;
  return request(out, n > 0 ? bytes[0] : 0);
}
static result send10(void *comm, void *data, size_t bytes, int tag, void *handle, void *profiler, void **out) { (void)profiler; return send9(comm, data, bytes, tag, handle, out); }
static result receive10(void *comm, int n, void **data, size_t *bytes, int *tags, void **handles, void **profilers, void **out) {
  (void)profilers;
  return receive9(comm, n, data, bytes, tags, handles, out);
}
static result flush(void *comm, int n, void **data, int *bytes, void **handles, void **out) {
  (void)comm; (void)n; (void)data; (void)bytes; (void)handles;
  *out = NULL;
  return SUCCESS;
}
static result test(void *r, int *done, int *bytes) {
  size_t n = 0;
  *done = 1;
  if (r) memcpy(&n, r, sizeof n);
  if (bytes) *bytes = (int)n;
  free(r);
  return SUCCESS;
}
static result close_comm(void *comm) { free(comm); return SUCCESS; }

// The members in NCCL's order. Optional members (device offload, virtual NICs) stay NULL.
#define PUBLIC __attribute__((visibility("default")))
struct plugin { const char *name; void *functions[20]; };
#define PLUGIN(init, properties, connect, send, receive) \
  {"Simulated", {(void *)init, (void *)devices, (void *)properties, (void *)net_listen, (void *)connect, (void *)net_accept, (void *)register_memory, \
   (void *)register_dma_buf, (void *)deregister_memory, (void *)send, (void *)receive, (void *)flush, (void *)test, (void *)close_comm, (void *)close_comm, (void *)close_comm}}
PUBLIC struct plugin ncclNetPlugin_v8 = PLUGIN(init8, get_properties8, net_connect8, send8, receive8);
PUBLIC struct plugin ncclNetPlugin_v9 = PLUGIN(init8, get_properties10, net_connect8, send9, receive9);
PUBLIC struct plugin ncclNetPlugin_v10 = PLUGIN(init10, get_properties10, net_connect10, send10, receive10);
