// SPDX-License-Identifier: Apache-2.0
// Declarations shared by the emulation's files. No NVIDIA header is used: numbers and layouts are those of the public, documented
// CUDA runtime, driver and NVML interfaces, as far as NCCL uses them.
//
// The emulation is a preload library. It answers the CUDA runtime, driver and NVML calls of one unmodified libnccl.so.2 from
// host memory. NCCL's decisions, which precede the launch, are real. By default kernels do nothing, so no bytes move and times are meaningless.
// With LINKWISE_EMU_PLAY=bytes the CPU plays NCCL's kernels (play.h), streams take time, and real bytes move.
#ifndef LINKWISE_EMU_H
#define LINKWISE_EMU_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>

// CUDA's error numbers, the same in runtime and driver.
typedef int status;
enum {
  OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, NOT_PERMITTED = 800,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904,
};

enum { GPUS_MAX = 64, BUS_ID_BYTES = 20, PAGE = 4096 };
#define GRANULARITY (2ul << 20) // of virtual memory management, as on real GPUs
#define PUBLIC __attribute__((visibility("default")))

// What a launched kernel does. The last two are negative controls: a run that checks its bytes must find them wrong.
enum play_mode { PLAY_OFF, PLAY_BYTES, PLAY_NOTHING, PLAY_WRONG_PARTS };

// ---- config.c: the simulated host, from the environment, and the log
struct config {
  int gpu_count;                          // NVML's devices: all GPUs of the host
  char bus_ids[GPUS_MAX][BUS_ID_BYTES];   // by NVML index
  int visible_count;                      // CUDA's devices
  int visible[GPUS_MAX];                  // CUDA ordinal -> NVML index
  int compute_capability;                 // 90 is 9.0
  int multiprocessors;
  size_t memory_bytes;
  int driver_version;                     // 13020 is CUDA 13.2
  int multicast, peer_to_peer;            // booleans
  int fabric_clique;                      // -1: no NVLink domain across hosts
  unsigned fabric_domain;
  enum play_mode play;
  int refuse_kernels;                     // boolean: kernels of the program end it; otherwise they are skipped and counted
  double stall_s;                         // a kernel in which nothing moves for so long ends the run
};
const struct config *config(void);
enum play_mode play_mode(void);
int serves_program(void);                 // boolean: the emulation serves a whole program, not only NCCL
// Level 0: always; 1: also launches; 2: also other calls (LINKWISE_EMU_LOG).
void emu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void emu_not_emulated(const char *what); // one line on stderr, and the run fails

// ---- device.c
int  current_device(void);
status select_device(int device);
status remember(status s); // for cudaGetLastError
status device_attribute(int *value, int attribute, int device);
void device_uuid(unsigned char uuid[16], int device);
int  device_by_bus_id(const char *bus_id, int among_visible); // -1: none

// ---- memory.c: every buffer is a mapping of a memfd: paged lazily, shareable as a file descriptor
enum kind { DEVICE_MEMORY = 1, HOST_MEMORY, IMPORTED_MEMORY, REGISTERED_MEMORY, RESERVATION, MAPPING };
// offset: of `begin` in the file. home: of imported memory, the number on the host of the GPU that holds it, plus 1.
struct range { uintptr_t begin; size_t bytes, offset; int fd, device; enum kind kind; void *handle; int home; };
int  range_add(struct range r);
int  range_find(uintptr_t address, struct range *out);               // not reservations
int  range_remove(uintptr_t begin, enum kind kind, struct range *out); // kind 0: any
status memory_allocate(void **out, size_t bytes, enum kind kind);
status memory_free(void *p);
int memory_gpu(const void *p);                        // number on the host of the GPU whose memory this is; -1: memory of the host
int memory_take(int device, size_t bytes);           // counts memory of a GPU; 0: it does not fit
void memory_give_back(int device, size_t bytes);
void memory_fill(void *p, int value, size_t bytes);
status queue_copy(void *to, const void *from, size_t bytes, void *stream);

// ---- stream.c, queue.c and graph.c
struct stream; struct event; struct graph; struct queue;
enum work_kind { WORK_KERNEL, WORK_HOST, WORK_COPY, WORK_FILL, WORK_FREE, WORK_MARK, WORK_RECORD, WORK_AWAIT, WORK_WRITE, WORK_WAIT_VALUE };
struct work {
  enum work_kind kind;
  const void *function;               // kernel
  unsigned grid, block; int device;
  char *bytes_of_work; size_t work_bytes; // a kernel's arguments, or the source of a copy from memory that the caller may reuse; owned
  void (*host)(void *); void *argument;
  void *to; const void *from; size_t bytes; int value;
  struct event *event; uint64_t sequence; // of a record or a wait; given when it is queued
  uint64_t word; int words32, compare; // of stream memory operations
};
status stream_submit(void *stream, struct work w);   // runs it now, queues it, or adds it to the graph being captured
void work_run(const struct work *w);
struct stream *stream_of(void *handle);              // NULL for the legacy default stream
int stream_captured(void *handle);
status kernel_submit(void *stream, struct work w, void **extra);

// Queues: streams that take time, one thread per stream that has work (only when kernels are played).
status queue_submit(void *stream, struct work w);    // takes the work's own bytes
// Wait for the work so far; of the legacy default stream that is the work of all blocking streams. Not from a stream's own thread.
status queue_drain(void *stream, const char *caller);
status queue_drain_device(int device, const char *caller);
int queue_busy(void *stream);
void queue_end(struct queue *q);                     // frees it when its work is done
status event_await(struct event *e);                 // all records so far
int event_done(struct event *e);
void event_free(struct event *e);
double event_seconds(struct event *from, struct event *to);

// ---- lane.c: links between the GPUs of a host, which copies by the runtime take
enum { LANE_FREE = -1, LANE_ABSENT = -2 };            // the copy takes no time; the GPUs have no link
int lane_of(const void *to, const void *from);
double lane_reserve(int lane, size_t bytes, double ready_s); // when the link has carried the bytes; times of CLOCK_MONOTONIC
void lane_wait(double end_s);

// ---- watch.c: which calls of NCCL and CUDA the threads of this process are in, and whether anything moves in any rank of the run
void watch_enter(const char *call, unsigned communicator); // nested calls count once; communicator 0: none
void watch_leave(void);
void watch_program_runs(int change);                  // +1, -1: a stream runs a function of the program, so the process does not only wait
void watch_moved(void);                              // progress of any kind
void watch_nap(unsigned us);                          // sleep of a thread that only looks whether there is something to do
int watch_ends(void);                                // boolean: the run is stuck and ends; say what you wait for
int watch_serves(void);                              // boolean: ranks of the run are watched together
char *shared_file(const char *name, size_t bytes);   // mapped memory that all ranks of the run share; NULL if there is none

// ---- calls.c: NCCL's entry points, and whether all ranks make the same calls
void *call_hook(const char *name, void *real);       // the function to call in place of an entry point; NULL if it is not watched

// ---- tables of functions by name
struct entry { const char *name; void *function; };
extern const struct entry runtime_entries[], memory_entries[], stream_entries[], graph_entries[], device_entries[];
extern const struct entry driver_entries[], vmm_entries[], program_entries[];
// The symbol at an address of the library, for messages; NULL if it is not a kernel.
const void *skipped_library_call(const char *name); // a function that counts the name and returns 0; NULL if there are too many
const char *kernel_name(const void *function);
int called_by_nccl(const void *return_address);
#define ENTRY(name) {#name, (void *)emu_##name}
#define ALIAS(name, target) {#name, (void *)target}

#endif
