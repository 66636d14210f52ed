// SPDX-License-Identifier: Apache-2.0
// The emulation's rules, without NCCL: memory, sharing between processes, streams, capture. Linked with the emulation's sources. The program
// ends at the first broken rule and prints its line.
#include "../emulation/play.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void *linkwise_emu_symbol(const char *name);
unsigned long linkwise_emu_launches(int device, unsigned *grid, unsigned *block);
unsigned long linkwise_emu_unknown_calls(void);
status cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);

#define RULE(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
#define CUDA(name, ...) (((status (*)())linkwise_emu_symbol(#name))(__VA_ARGS__))
static status (*driver(const char *name))() {
  void *f = NULL;
  RULE(cuGetProcAddress(name, &f, 0, 0) == OK);
  return (status (*)())f;
}
#define DRIVER(name, ...) (driver(#name)(__VA_ARGS__))

struct ipc_handle { char bytes[64]; };
struct properties { int type, handle_types, location_type, location; void *windows; unsigned char flags[8]; };
struct pointer_attributes { int type, device; void *on_device, *on_host; };
struct dim3 { unsigned x, y, z; };
static const struct dim3 GRID = {4, 1, 1}, BLOCK = {128, 1, 1};
static status launch(void *stream) {
  return ((status (*)(const void *, struct dim3, struct dim3, void **, size_t, void *))linkwise_emu_symbol("cudaLaunchKernel"))(GRID.x ? "k" : 0, GRID, BLOCK, NULL, 0, stream);
}

static void memory(void) {
  char *a = NULL, *b = NULL;
  struct pointer_attributes attributes;
  size_t begin_bytes = 0;
  uint64_t begin = 0;
  RULE(CUDA(cudaMalloc, &a, (size_t)1 << 40) == OK); // a terabyte: only touched pages take memory
  a[((size_t)1 << 40) - 1] = 7;
  RULE(CUDA(cudaMemset, a, 0, (size_t)1 << 40) == OK && a[((size_t)1 << 40) - 1] == 0);
  RULE(CUDA(cudaHostAlloc, &b, (size_t)100, 0u) == OK);
  RULE(CUDA(cudaPointerGetAttributes, &attributes, a + 5) == OK && attributes.type == 2 && attributes.on_device == a + 5);
  RULE(CUDA(cudaPointerGetAttributes, &attributes, b + 99) == OK && attributes.type == 1);
  RULE(CUDA(cudaPointerGetAttributes, &attributes, &begin) == OK && attributes.type == 0);
  RULE(DRIVER(cuMemGetAddressRange, &begin, &begin_bytes, (uint64_t)(a + 12345)) == OK && begin == (uint64_t)a && begin_bytes == (size_t)1 << 40);
  memset(b, 3, 100);
  RULE(CUDA(cudaMemset, b, 9, (size_t)50) == OK && b[49] == 9 && b[50] == 3);
  RULE(CUDA(cudaMemcpy, a, b, (size_t)100, 4) == OK && a[49] == 9 && a[50] == 3);
  RULE(CUDA(cudaFree, a + 1) == INVALID_VALUE && CUDA(cudaGetLastError) == INVALID_VALUE && CUDA(cudaGetLastError) == OK);
  RULE(CUDA(cudaFree, a) == OK && CUDA(cudaFree, a) == INVALID_VALUE && CUDA(cudaFree, NULL) == OK && CUDA(cudaFreeHost, b) == OK);
  CUDA(cudaGetLastError);
  // The GPU's 2 TiB are a limit, and what is taken is not free. Allocations share one file descriptor.
  size_t unused = 0, total = 0;
  RULE(CUDA(cudaMalloc, &a, (size_t)3 << 39) == OK && CUDA(cudaMalloc, &b, (size_t)3 << 39) == OUT_OF_MEMORY && !b);
  RULE(CUDA(cudaMemGetInfo, &unused, &total) == OK && total == (size_t)2 << 40 && unused == (size_t)1 << 39);
  RULE(CUDA(cudaFree, a) == OK && CUDA(cudaMemGetInfo, &unused, &total) == OK && unused == total);
  int before = dup(0), after;
  for (int i = 0; i < 100; i++) RULE(CUDA(cudaMalloc, &a, (size_t)100) == OK && a[0] == 0 && (a[0] = 1));
  RULE((after = dup(0)) == before + 1 && !close(before) && !close(after));
  CUDA(cudaGetLastError);
}

// Whether `f` succeeds in a child process.
static int in_child(int (*f)(void *), void *argument) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) _exit(f(argument) ? 0 : 1);
  int how = 0;
  return waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0;
}
static int write_through_ipc(void *handle) {
  char *p = NULL;
  struct ipc_handle h = *(struct ipc_handle *)handle;
  if (((status (*)(void **, struct ipc_handle, unsigned))linkwise_emu_symbol("cudaIpcOpenMemHandle"))((void **)&p, h, 1) != OK) return 0;
  int seen = p[4097] == 42;
  p[1] = 43;
  return seen && CUDA(cudaIpcCloseMemHandle, p) == OK;
}
static int fd_of_handle = -1;
static int write_through_fd(void *unused) {
  (void)unused;
  void *handle = NULL;
  uint64_t at = 0;
  if (DRIVER(cuMemImportFromShareableHandle, &handle, (void *)(uintptr_t)fd_of_handle, 1) != OK) return 0;
  if (DRIVER(cuMemAddressReserve, &at, (size_t)GRANULARITY, (size_t)0, (uint64_t)0, (uint64_t)0) != OK) return 0;
  if (DRIVER(cuMemMap, at, (size_t)GRANULARITY, (size_t)0, handle, (uint64_t)0) != OK) return 0;
  ((char *)at)[17] = 44;
  return 1;
}

static void sharing(void) {
  char *p = NULL;
  struct ipc_handle handle;
  RULE(CUDA(cudaMalloc, &p, (size_t)8192) == OK && CUDA(cudaIpcGetMemHandle, &handle, p) == OK);
  p[4097] = 42;
  RULE(in_child(write_through_ipc, &handle) && p[1] == 43);
  RULE(CUDA(cudaFree, p) == OK);

  struct properties wanted = {.type = 1, .handle_types = 1, .location_type = 1, .location = 0}, got;
  void *vmm = NULL, *again = NULL;
  uint64_t at = 0, types = 0;
  RULE(DRIVER(cuMemCreate, &vmm, (size_t)GRANULARITY, &wanted, (uint64_t)0) == OK);
  RULE(DRIVER(cuMemAddressReserve, &at, (size_t)(4 * GRANULARITY), (size_t)0, (uint64_t)0, (uint64_t)0) == OK && at % GRANULARITY == 0);
  RULE(DRIVER(cuMemMap, at + GRANULARITY, (size_t)GRANULARITY, (size_t)0, vmm, (uint64_t)0) == OK);
  RULE(DRIVER(cuMemRetainAllocationHandle, &again, (void *)(at + GRANULARITY + 9)) == OK && again == vmm);
  RULE(DRIVER(cuMemRetainAllocationHandle, &again, (void *)at) == INVALID_VALUE); // reserved, not mapped
  RULE(DRIVER(cuPointerGetAttribute, &types, 14, at + GRANULARITY) == OK && types == 1);
  RULE(DRIVER(cuMemExportToShareableHandle, &fd_of_handle, vmm, 1, (uint64_t)0) == OK && fd_of_handle >= 0);
  RULE(in_child(write_through_fd, NULL) && ((char *)at)[GRANULARITY + 17] == 44);
  // Zeroing a part of a mapping keeps the rest.
  memset((void *)(at + GRANULARITY), 5, GRANULARITY);
  RULE(CUDA(cudaMemset, at + GRANULARITY + 100, 0, (size_t)(1 << 20)) == OK);
  RULE(((char *)at)[GRANULARITY + 99] == 5 && ((char *)at)[GRANULARITY + 100] == 0 && ((char *)at)[GRANULARITY + 100 + (1 << 20)] == 5);
  RULE(DRIVER(cuMemGetAllocationPropertiesFromHandle, &got, vmm) == OK && got.handle_types == 1);
  RULE(DRIVER(cuMemCreate, &again, (size_t)GRANULARITY, &(struct properties){.type = 1, .handle_types = 8}, (uint64_t)0) == NOT_SUPPORTED); // no NVLink domain
  RULE(DRIVER(cuMemUnmap, at + GRANULARITY, (size_t)GRANULARITY) == OK && DRIVER(cuMemUnmap, at + GRANULARITY, (size_t)GRANULARITY) == INVALID_VALUE);
  RULE(DRIVER(cuMemRelease, vmm) == OK && DRIVER(cuMemRelease, vmm) == OK && DRIVER(cuMemAddressFree, at, (size_t)(4 * GRANULARITY)) == OK);
}

static int host_calls, destroyed;
static void count(void *unused) { (void)unused; host_calls++; }
static void destroy(void *unused) { (void)unused; destroyed++; }

static void capture(void) {
  void *a = NULL, *b = NULL, *event = NULL, *graph = NULL, *other = NULL, *object = NULL;
  int state = -1;
  unsigned grid = 0, block = 0;
  unsigned long before = linkwise_emu_launches(0, NULL, NULL);
  RULE(CUDA(cudaStreamCreateWithFlags, &a, 1) == OK && CUDA(cudaStreamCreateWithFlags, &b, 1) == OK && CUDA(cudaEventCreateWithFlags, &event, 2) == OK);
  // Outside a capture, work runs at once.
  RULE(launch(a) == OK && linkwise_emu_launches(0, &grid, &block) == before + 1 && grid == 4 && block == 128);
  RULE(CUDA(cudaLaunchHostFunc, a, count, NULL) == OK && host_calls == 1);

  RULE(CUDA(cudaStreamBeginCapture, NULL, 0) == CAPTURE_UNSUPPORTED); // the default stream cannot be captured
  RULE(CUDA(cudaStreamBeginCapture, a, 0) == OK && CUDA(cudaStreamIsCapturing, a, &state) == OK && state == 1);
  RULE(CUDA(cudaStreamBeginCapture, a, 0) == INVALID_VALUE && CUDA(cudaStreamQuery, a) == CAPTURE_UNSUPPORTED);
  RULE(launch(a) == OK && CUDA(cudaLaunchHostFunc, a, count, NULL) == OK);
  RULE(CUDA(cudaEventRecord, event, a) == OK && CUDA(cudaStreamWaitEvent, b, event, 0) == OK); // b joins
  RULE(CUDA(cudaStreamIsCapturing, b, &state) == OK && state == 1 && launch(b) == OK);
  RULE(CUDA(cudaStreamEndCapture, b, &graph) == CAPTURE_UNMATCHED);
  RULE(CUDA(cudaEventRecord, event, b) == OK && CUDA(cudaStreamWaitEvent, a, event, 0) == OK); // b is joined again
  RULE(CUDA(cudaStreamGetCaptureInfo_v2, a, &state, NULL, &other, NULL, NULL) == OK && state == 1 && other);
  RULE(CUDA(cudaUserObjectCreate, &object, NULL, destroy, 1, 1) == OK && CUDA(cudaGraphRetainUserObject, other, object, 1, 1) == OK);
  RULE(linkwise_emu_launches(0, NULL, NULL) == before + 1 && host_calls == 1); // nothing has run
  RULE(CUDA(cudaStreamEndCapture, a, &graph) == OK && graph == other);
  RULE(CUDA(cudaStreamIsCapturing, a, &state) == OK && state == 0 && CUDA(cudaStreamIsCapturing, b, &state) == OK && state == 0);

  void *executable = NULL;
  size_t nodes = 0;
  RULE(CUDA(cudaGraphGetNodes, graph, NULL, &nodes) == OK && nodes == 3);
  RULE(CUDA(cudaGraphInstantiate, &executable, graph, 0ull) == OK && CUDA(cudaGraphDestroy, graph) == OK && destroyed == 0);
  RULE(CUDA(cudaGraphLaunch, executable, a) == OK && CUDA(cudaGraphLaunch, executable, a) == OK);
  RULE(linkwise_emu_launches(0, NULL, NULL) == before + 5 && host_calls == 3);
  RULE(CUDA(cudaGraphExecDestroy, executable) == OK && destroyed == 1);

  // A stream that is not joined again invalidates the capture. An event of an old capture joins no stream.
  RULE(CUDA(cudaStreamBeginCapture, a, 0) == OK && CUDA(cudaEventRecord, event, a) == OK && CUDA(cudaStreamWaitEvent, b, event, 0) == OK && launch(b) == OK);
  RULE(CUDA(cudaStreamEndCapture, a, &graph) == CAPTURE_UNJOINED && !graph);
  RULE(CUDA(cudaStreamWaitEvent, b, event, 0) == OK && CUDA(cudaStreamIsCapturing, b, &state) == OK && state == 0);
  RULE(launch(b) == OK && linkwise_emu_launches(0, NULL, NULL) == before + 6);
  // A stream that has joined may be destroyed before the capture ends: the next allocation may then get its memory.
  void *scratch;
  unsigned char *next[16], same[128];
  memset(same, 0x5a, sizeof same);
  RULE(CUDA(cudaStreamCreateWithFlags, &scratch, 1) == OK);
  RULE(CUDA(cudaStreamBeginCapture, a, 0) == OK && CUDA(cudaEventRecord, event, a) == OK && CUDA(cudaStreamWaitEvent, scratch, event, 0) == OK);
  RULE(CUDA(cudaStreamDestroy, scratch) == OK);
  for (size_t i = 0; i < 16; i++) memset(next[i] = malloc(8 * i + 8), 0x5a, 8 * i + 8);
  RULE(CUDA(cudaStreamEndCapture, a, &graph) == OK && CUDA(cudaGraphDestroy, graph) == OK);
  for (size_t i = 0; i < 16; i++) {
    RULE(!memcmp(next[i], same, 8 * i + 8));
    free(next[i]);
  }
  // Two captures cannot be joined.
  RULE(CUDA(cudaStreamBeginCapture, a, 0) == OK && CUDA(cudaStreamBeginCapture, b, 0) == OK && CUDA(cudaEventRecord, event, a) == OK);
  RULE(CUDA(cudaStreamWaitEvent, b, event, 0) == CAPTURE_MERGE);
  RULE(CUDA(cudaStreamEndCapture, a, &graph) == OK && CUDA(cudaGraphDestroy, graph) == OK && CUDA(cudaStreamEndCapture, b, &graph) == OK && CUDA(cudaGraphDestroy, graph) == OK);
  RULE(CUDA(cudaEventDestroy, event) == OK && CUDA(cudaStreamDestroy, a) == OK && CUDA(cudaStreamDestroy, b) == OK && CUDA(cudaStreamDestroy, NULL) == INVALID_HANDLE);
}

// ---- streams that take time (LINKWISE_EMU_PLAY)
static volatile int gate, passed;
static void slow(void *unused) { (void)unused; usleep(50000); passed++; }
static void wait_for_gate(void *unused) { // at most ten seconds
  (void)unused;
  for (int i = 0; i < 10000 && !gate; i++) usleep(1000);
  passed += gate;
}
static void open_gate(void *unused) { (void)unused; gate = 1; }
enum { BYTES = 1 << 16, TO_HOST = 2, NOT_BLOCKING = 1 };
static void *const LEGACY = NULL, *const OWN = (void *)2;

static int order_of_streams(void *unused) {
  (void)unused;
  void *blocking = NULL, *other = NULL;
  char *p = NULL, *pinned = NULL, out[BYTES];
  setenv("LINKWISE_EMU_PLAY", "nothing", 1);
  RULE(CUDA(cudaStreamCreate, &blocking) == OK && CUDA(cudaStreamCreateWithFlags, &other, NOT_BLOCKING) == OK);
  RULE(CUDA(cudaMalloc, &p, (size_t)BYTES) == OK && CUDA(cudaHostAlloc, &pinned, (size_t)BYTES, 0u) == OK);
  // A copy waits for blocking streams, the thread's own default stream among them.
  void *const streams[] = {blocking, OWN, LEGACY};
  for (int i = 0; i < 3; i++) {
    RULE(CUDA(cudaLaunchHostFunc, streams[i], slow, NULL) == OK && CUDA(cudaMemsetAsync, p, i + 1, (size_t)BYTES, streams[i]) == OK);
    RULE(CUDA(cudaMemcpy, i == 1 ? pinned : out, p, (size_t)BYTES, TO_HOST) == OK && (i == 1 ? pinned : out)[BYTES - 1] == i + 1);
  }
  // It does not wait for other streams; a blocking stream waits for the legacy default stream.
  RULE(CUDA(cudaLaunchHostFunc, other, wait_for_gate, NULL) == OK && CUDA(cudaMemcpy, out, p, (size_t)BYTES, TO_HOST) == OK);
  RULE(CUDA(cudaStreamQuery, other) == NOT_READY && !(gate = 0, passed = 0));
  RULE(CUDA(cudaLaunchHostFunc, LEGACY, slow, NULL) == OK && CUDA(cudaStreamSynchronize, blocking) == OK);
  RULE(CUDA(cudaMemsetAsync, p, 7, (size_t)BYTES, blocking) == OK && CUDA(cudaStreamSynchronize, blocking) == OK && passed == 1);
  gate = 1;
  RULE(CUDA(cudaDeviceSynchronize) == OK && passed == 2);
  // A fill comes after the earlier work of its stream, and the host does not wait for it.
  RULE(CUDA(cudaLaunchHostFunc, LEGACY, slow, NULL) == OK && CUDA(cudaMemsetAsync, p, 5, (size_t)BYTES, LEGACY) == OK);
  RULE(CUDA(cudaMemset, p, 6, (size_t)BYTES) == OK && passed == 2 && CUDA(cudaMemcpy, out, p, (size_t)BYTES, TO_HOST) == OK && out[9] == 6);
  return 1;
}
static int freeing(void *unused) {
  (void)unused;
  void *s = NULL;
  char *p = NULL;
  setenv("LINKWISE_EMU_PLAY", "nothing", 1);
  RULE(CUDA(cudaStreamCreateWithFlags, &s, NOT_BLOCKING) == OK && CUDA(cudaMallocAsync, &p, (size_t)BYTES, s) == OK);
  RULE(CUDA(cudaLaunchHostFunc, s, slow, NULL) == OK && CUDA(cudaMemsetAsync, p, 5, (size_t)BYTES, s) == OK && CUDA(cudaFreeAsync, p, s) == OK && passed == 0);
  RULE(CUDA(cudaStreamSynchronize, s) == OK && passed == 1 && CUDA(cudaFree, p) == INVALID_VALUE);
  RULE(CUDA(cudaMalloc, &p, (size_t)BYTES) == OK && CUDA(cudaLaunchHostFunc, s, slow, NULL) == OK);
  RULE(CUDA(cudaMemsetAsync, p, 5, (size_t)BYTES, s) == OK && CUDA(cudaFree, p) == OK && passed == 2);
  return 1;
}
static int graphs_in_time(void *unused) {
  (void)unused;
  void *a = NULL, *b = NULL, *fork_event = NULL, *join = NULL, *graph = NULL;
  char *p = NULL, out[BYTES] = {0};
  setenv("LINKWISE_EMU_PLAY", "nothing", 1);
  RULE(CUDA(cudaStreamCreateWithFlags, &a, NOT_BLOCKING) == OK && CUDA(cudaStreamCreateWithFlags, &b, NOT_BLOCKING) == OK);
  RULE(CUDA(cudaEventCreate, &fork_event) == OK && CUDA(cudaEventCreate, &join) == OK && CUDA(cudaMalloc, &p, (size_t)BYTES) == OK);
  // A copy into pageable memory is part of the graph.
  RULE(CUDA(cudaStreamBeginCapture, a, 0) == OK && CUDA(cudaMemsetAsync, p, 3, (size_t)BYTES, a) == OK);
  RULE(CUDA(cudaMemcpyAsync, out, p, (size_t)BYTES, TO_HOST, a) == OK && out[0] == 0 && CUDA(cudaStreamEndCapture, a, &graph) == OK);
  RULE(CUDA(cudaGraphLaunch, graph, a) == OK && CUDA(cudaStreamSynchronize, a) == OK && out[BYTES - 1] == 3);
  // The first branch ends only while the second one runs; what joins them comes last, at every launch.
  RULE(CUDA(cudaStreamBeginCapture, a, 0) == OK && CUDA(cudaEventRecord, fork_event, a) == OK && CUDA(cudaStreamWaitEvent, b, fork_event, 0) == OK);
  RULE(CUDA(cudaLaunchHostFunc, a, wait_for_gate, NULL) == OK && CUDA(cudaLaunchHostFunc, b, open_gate, NULL) == OK);
  RULE(CUDA(cudaLaunchHostFunc, b, slow, NULL) == OK && CUDA(cudaMemsetAsync, p, 4, (size_t)BYTES, b) == OK);
  RULE(CUDA(cudaEventRecord, join, b) == OK && CUDA(cudaStreamWaitEvent, a, join, 0) == OK);
  RULE(CUDA(cudaMemcpyAsync, out, p, (size_t)BYTES, TO_HOST, a) == OK && CUDA(cudaStreamEndCapture, a, &graph) == OK);
  for (int i = 1; i <= 3; i++) {
    gate = 0;
    memset(out, 0, BYTES);
    RULE(CUDA(cudaMemsetAsync, p, 1, (size_t)BYTES, b) == OK && CUDA(cudaStreamSynchronize, b) == OK);
    RULE(CUDA(cudaGraphLaunch, graph, a) == OK && CUDA(cudaStreamSynchronize, a) == OK && passed == 2 * i && out[BYTES - 1] == 4);
  }
  RULE(CUDA(cudaGraphDestroy, graph) == OK);
  return 1;
}

// Copies between GPUs take the time of their link, which all processes share. The link's clock shows it whatever else the machine does.
enum { PART = 1 << 16, PARTS = 5, LINK_MBIT = 80, FROM_GPU = 2, TO_GPU = 0 };
static const double PART_S = PART * 8.0 / (LINK_MBIT * 1e6);
static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
struct links_case { char *from, *to; struct ipc_handle of_to; volatile int *begun; };
static int copies_of_another_process(void *argument) {
  struct links_case *c = argument;
  char *to = NULL, *from = NULL;
  void *s = NULL;
  for (int i = 0; i < 10000 && !*c->begun; i++) usleep(1000);
  RULE(CUDA(cudaSetDevice, 0) == OK && CUDA(cudaMalloc, &from, (size_t)PART) == OK && CUDA(cudaStreamCreateWithFlags, &s, NOT_BLOCKING) == OK);
  RULE(((status (*)(void **, struct ipc_handle, unsigned))linkwise_emu_symbol("cudaIpcOpenMemHandle"))((void **)&to, c->of_to, 1) == OK);
  RULE(CUDA(cudaMemsetAsync, from, 9, (size_t)PART, s) == OK);
  for (int i = 0; i < PARTS; i++) RULE(CUDA(cudaMemcpyAsync, to + PART, from, (size_t)PART, 4, s) == OK);
  RULE(CUDA(cudaStreamSynchronize, s) == OK && to[2 * PART - 1] == 9);
  return 1;
}
static int links(void *folder) {
  struct links_case c;
  void *a = NULL, *b = NULL, *event = NULL;
  setenv("LINKWISE_EMU_PLAY", "nothing", 1);
  setenv("LINKWISE_EMU_SHARED_MEMORY", folder, 1);
  setenv("LINKWISE_EMU_LINK_MBIT", "2>0:80", 1);
  const int lane = FROM_GPU * GPUS_MAX + TO_GPU;
  RULE(CUDA(cudaMalloc, &c.from, (size_t)PART) == OK && CUDA(cudaSetDevice, 1) == OK && CUDA(cudaMalloc, &c.to, (size_t)(2 * PART)) == OK);
  RULE(CUDA(cudaIpcGetMemHandle, &c.of_to, c.to) == OK && CUDA(cudaSetDevice, 0) == OK);
  c.begun = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  RULE(c.begun != MAP_FAILED);
  pid_t other = fork(); // before this process has threads
  if (other == 0) _exit(copies_of_another_process(&c) ? 0 : 1);
  RULE(CUDA(cudaStreamCreateWithFlags, &a, NOT_BLOCKING) == OK && CUDA(cudaStreamCreateWithFlags, &b, NOT_BLOCKING) == OK && CUDA(cudaEventCreate, &event) == OK);
  // One stream after the other by an event: the copies follow each other without a gap, although threads wake late.
  double before = seconds_now();
  RULE(CUDA(cudaMemcpyAsync, c.to, c.from, (size_t)PART, 4, a) == OK);
  double after = seconds_now();
  for (int i = 1; i < PARTS; i++) RULE(CUDA(cudaMemcpyAsync, c.to, c.from, (size_t)PART, 4, a) == OK);
  RULE(CUDA(cudaEventRecord, event, a) == OK && CUDA(cudaStreamWaitEvent, b, event, 0) == OK && CUDA(cudaMemcpyAsync, c.to, c.from, (size_t)PART, 4, b) == OK);
  RULE(CUDA(cudaStreamSynchronize, b) == OK);
  double end = lane_reserve(lane, 0, 0), whole = (PARTS + 1) * PART_S;
  RULE(end >= before + whole - 1e-6 && end <= after + whole + 1e-6 && seconds_now() >= end);
  // Another process uses the same link: its copies and ours share it.
  before = seconds_now();
  *c.begun = 1;
  for (int i = 0; i < PARTS; i++) RULE(CUDA(cudaMemcpyAsync, c.to, c.from, (size_t)PART, 4, a) == OK);
  int how = 1;
  RULE(waitpid(other, &how, 0) == other && how == 0 && CUDA(cudaStreamSynchronize, a) == OK && seconds_now() >= before + 2 * PARTS * PART_S);
  // A copy inside a GPU takes no link; one between GPUs without a link is an error.
  end = lane_reserve(lane, 0, 0);
  RULE(CUDA(cudaMemcpyAsync, c.from + 8, c.from, (size_t)8, 4, a) == OK && CUDA(cudaMemcpyAsync, c.from, c.to, (size_t)8, 4, a) == INVALID_VALUE);
  RULE(CUDA(cudaStreamSynchronize, a) == OK && lane_reserve(lane, 0, 0) == end);
  return 1;
}

static void reductions(void) {
  const float nan = __builtin_nanf(""), x[] = {nan, 2, nan, -0.0f, 0.0f, -3}, y[] = {1, nan, nan, 0.0f, -0.0f, 4};
  float low[6], high[6];
  op_reduce(&(struct op){MIN_MAX, F32, 4, 0}, low, x, y, 6);
  op_reduce(&(struct op){MIN_MAX, F32, 4, 1}, high, x, y, 6);
  RULE(low[0] == 1 && low[1] == 2 && low[2] != low[2] && low[3] == 0 && __builtin_signbitf(low[3]) && __builtin_signbitf(low[4]) && low[5] == -3);
  RULE(high[0] == 1 && high[1] == 2 && high[2] != high[2] && !__builtin_signbitf(high[3]) && !__builtin_signbitf(high[4]) && high[5] == 4);
  const uint16_t one[] = {0x7e00, 0x8000}, two[] = {0x3c00, 0}; // fp16: not a number and 1, -0 and +0
  uint16_t least[2];
  op_reduce(&(struct op){MIN_MAX, F16, 2, 0}, least, one, two, 2);
  RULE(least[0] == 0x3c00 && least[1] == 0x8000);
}

static void devices(void) {
  int n = 0, value = 0, can = -1;
  char bus_id[20];
  RULE(CUDA(cudaGetDeviceCount, &n) == OK && n == 2); // two of the host's three GPUs are visible, in this order
  RULE(CUDA(cudaDeviceGetPCIBusId, bus_id, 20, 0) == OK && !strcmp(bus_id, "0000:30:00.0"));
  RULE(CUDA(cudaDeviceGetByPCIBusId, &value, "0000:10:00.0") == OK && value == 1 && CUDA(cudaDeviceGetByPCIBusId, &value, "0000:20:00.0") == INVALID_DEVICE);
  RULE(CUDA(cudaSetDevice, 1) == OK && CUDA(cudaGetDevice, &value) == OK && value == 1 && CUDA(cudaSetDevice, 2) == INVALID_DEVICE);
  RULE(CUDA(cudaDeviceGetAttribute, &value, 75, 0) == OK && value == 8);
  RULE(CUDA(cudaDeviceCanAccessPeer, &can, 0, 1) == OK && can == 1 && CUDA(cudaDeviceCanAccessPeer, &can, 0, 0) == OK && can == 0);
  CUDA(cudaSetDevice, 0);
  CUDA(cudaGetLastError);
}

int main(void) {
  setenv("LINKWISE_EMU_BUS_IDS", "0000:10:00.0,0000:20:00.0,0000:30:00.0", 1);
  setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
  setenv("LINKWISE_EMU_SM", "80", 1);
  setenv("LINKWISE_EMU_MEMORY_GIB", "2048", 1);
  RULE(in_child(order_of_streams, NULL) && in_child(freeing, NULL) && in_child(graphs_in_time, NULL)); // they read the variables anew
  char folder[] = "/tmp/linkwise-links-XXXXXX", file[64];
  RULE(mkdtemp(folder) && in_child(links, folder));
  snprintf(file, sizeof file, "%s/links-14650fb0739d0383", folder); // of a host without a name
  RULE(!unlink(file) && !rmdir(folder));
  devices();
  memory();
  sharing();
  capture();
  reductions();
  RULE(linkwise_emu_unknown_calls() == 0);
  RULE(linkwise_emu_symbol("cudaNoSuchFunction") == NULL);
  int out;
  RULE(DRIVER(cuPointerGetAttribute, &out, 99, (uint64_t)0) == NOT_SUPPORTED && linkwise_emu_unknown_calls() == 1); // reported and counted
  puts("kept");
  return 0;
}
