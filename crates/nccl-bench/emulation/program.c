// SPDX-License-Identifier: Apache-2.0
// What a whole program needs beyond NCCL (LINKWISE_EMU_PROGRAM=1): its place on a simulated host, the registration of its own kernels, and runtime and
// driver functions that PyTorch calls. The program's own kernels are not played: they are skipped and counted, or end the program, by name.
#include "emu.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the place: LINKWISE_EMU_HOSTS="2x4" cuts the ranks of one launcher into hosts of 4, before the program reads its environment
static long variable(const char *const *names) {
  for (; *names; names++) {
    const char *s = getenv(*names);
    if (s && *s) return strtol(s, NULL, 10);
  }
  return -1;
}
static void set_number(const char *name, long value) {
  char text[24];
  snprintf(text, sizeof text, "%ld", value);
  setenv(name, text, 1);
}
__attribute__((constructor(101))) static void take_place(void) {
  static const char *const rank_names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
  static const char *const size_names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL};
  static const char *const local_names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
  const char *hosts_text = getenv("LINKWISE_EMU_HOSTS"), *job = getenv("LINKWISE_EMU_JOB");
  long hosts = 0, gpus = 0, rank = variable(rank_names), ranks = variable(size_names);
  if (!hosts_text || rank < 0) return; // a launcher, or a shell
  if (sscanf(hosts_text, "%ldx%ld", &hosts, &gpus) != 2 || hosts < 1 || gpus < 1 || rank >= hosts * gpus || (ranks >= 0 && ranks != hosts * gpus)) {
    fprintf(stderr, "linkwise-emulation: not played: rank %ld of %ld on hosts %s; start as many ranks as the hosts have GPUs\n", rank, ranks, hosts_text);
    _exit(68);
  }
  char id[128];
  snprintf(id, sizeof id, "linkwise-%s-%ld", job ? job : "emulate", rank / gpus);
  setenv("NCCL_HOSTID", id, 1);
  for (const char *const *n = local_names; *n; n++)
    if (n == local_names || getenv(*n)) set_number(*n, rank % gpus);
  set_number("LOCAL_WORLD_SIZE", gpus);
  set_number("GROUP_RANK", rank / gpus);
  set_number("LINKWISE_EMU_RANK", rank);
  set_number("LINKWISE_EMU_RANKS", hosts * gpus);
}

// ---- kernels of the program
enum { KERNELS_MAX = 1 << 16, COUNTED_MAX = 4096, NAME_BYTES = 160 };
static struct { const void *at; const char *name; } registered[KERNELS_MAX];
static int registered_count;
static struct { const void *at; char name[NAME_BYTES]; unsigned long launches; } counted[COUNTED_MAX];
static int counted_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void emu___cudaRegisterFunction(void **handle, const void *at, char *device, const char *name) {
  (void)handle; (void)device;
  pthread_mutex_lock(&lock);
  if (registered_count < KERNELS_MAX) registered[registered_count].at = at, registered[registered_count++].name = name;
  pthread_mutex_unlock(&lock);
}
static void **emu___cudaRegisterFatBinary(void *image) { (void)image; static void *handle; return &handle; }
static void emu_nothing(void) {}
static status emu_nothing_done(void) { return OK; }

// A kernel that was not registered: its symbol, or its file and offset, which are the same in every process.
static void name_by_place(char *out, const void *f) {
  Dl_info d;
  if (!dladdr(f, &d)) snprintf(out, NAME_BYTES, "without a name");
  else if (d.dli_sname) snprintf(out, NAME_BYTES, "%s", d.dli_sname);
  else {
    const char *file = d.dli_fname ? strrchr(d.dli_fname, '/') : NULL;
    snprintf(out, NAME_BYTES, "%s+0x%zx", file ? file + 1 : "program", (size_t)((const char *)f - (const char *)d.dli_fbase));
  }
}
static status skip_as(const void *f, const char *name) {
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < counted_count && counted[i].at != f) i++;
  if (i == counted_count && i < COUNTED_MAX) {
    for (int k = 0; k < registered_count && !name; k++)
      if (registered[k].at == f) name = registered[k].name;
    counted[i].at = f;
    if (name) snprintf(counted[i].name, NAME_BYTES, "%s", name);
    else name_by_place(counted[i].name, f);
    counted_count++;
  }
  if (i < COUNTED_MAX) counted[i].launches++;
  if (config()->refuse_kernels) {
    emu_log(0, "not played: the program's kernel %s", i < COUNTED_MAX ? counted[i].name : "");
    _exit(68);
  }
  pthread_mutex_unlock(&lock);
  return OK;
}
static status skip(const void *f) { return skip_as(f, NULL); }
static status emu_skipped_kernel(const void *f) { return skip(f); }
static status emu_skipped_kernel_ex(const void *configuration, const void *f) { (void)configuration; return skip(f); }

// ---- cuBLAS: library calls that launch kernels. Stub i loads i and jumps to emu_skip_library(); all return success.
enum { LIBRARY_CALLS_MAX = 2048 };
static char *library_calls[LIBRARY_CALLS_MAX];
static int library_call_count;
__attribute__((used, visibility("hidden"))) status emu_skip_library(int i) { return skip_as(&library_calls[i], library_calls[i]); }
extern char emu_skips[] __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".hidden emu_skips\n.globl emu_skips\n.p2align 4\nemu_skips:\n"
        ".set i, 0\n.rept 2048\n.p2align 4\nmov $i, %edi\njmp emu_skip_library\n.set i, i+1\n.endr\n"); // LIBRARY_CALLS_MAX of 16 bytes each

static status emu_cublas_create(void **handle) { static int only; *handle = &only; return OK; }
// Promises one algorithm without a workspace: programs end if there is none.
static status emu_cublas_heuristic(void *lt, void *operation, void *a, void *b, void *c, void *d, void *preference, int requested, void *results, int *count) {
  enum { RESULT_BYTES = 96 };
  (void)lt; (void)operation; (void)a; (void)b; (void)c; (void)d; (void)preference; (void)requested;
  memset(results, 0, RESULT_BYTES);
  *count = 1;
  return OK;
}
const void *skipped_library_call(const char *name) {
  static const struct entry own[] = {
    ALIAS(cublasCreate_v2, emu_cublas_create), ALIAS(cublasLtCreate, emu_cublas_create), ALIAS(cublasLtMatmulDescCreate, emu_cublas_create),
    ALIAS(cublasLtMatrixLayoutCreate, emu_cublas_create), ALIAS(cublasLtMatmulPreferenceCreate, emu_cublas_create),
    ALIAS(cublasLtMatmulAlgoGetHeuristic, emu_cublas_heuristic), {0, 0}};
  for (const struct entry *e = own; e->name; e++)
    if (!strcmp(e->name, name)) return e->function;
  // What only sets up a call launches nothing.
  static const char *const quiet[] = {"Set", "Get", "Init", "Destroy", "Create", NULL};
  for (const char *const *q = quiet; *q; q++)
    if (strstr(name, *q)) return emu_nothing_done;
  if (library_call_count == LIBRARY_CALLS_MAX || !(library_calls[library_call_count] = strdup(name))) return NULL;
  return emu_skips + 16 * library_call_count++;
}

// One line per kernel, "skipped LAUNCHES NAME", for `linkwise emulate`.
__attribute__((destructor)) static void report_skipped(void) {
  const char *path = getenv("LINKWISE_EMU_SUMMARY");
  int fd = path && counted_count ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
  char line[NAME_BYTES + 64];
  for (int i = 0; i < counted_count && fd >= 0; i++) {
    int n = snprintf(line, sizeof line, "skipped %lu %s\n", counted[i].launches, counted[i].name);
    if (write(fd, line, (size_t)n) != n) break;
  }
  if (fd >= 0) close(fd);
}

// The compiler's launch syntax: a configuration is pushed, and taken by the kernel's host function.
struct dim3 { unsigned x, y, z; };
static __thread struct { struct dim3 grid, block; size_t shared; void *stream; } pushed;
static unsigned emu___cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, void *stream) {
  pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
  return 0;
}
static status emu___cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void **stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *stream = pushed.stream;
  return OK;
}
static status emu___cudaGetKernel(const void **kernel, const void *f) { *kernel = f; return OK; }

// ---- functions that PyTorch calls
static status emu_cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, void *stream) {
  (void)to_device; (void)from_device;
  return queue_copy(to, from, bytes, stream);
}
static status emu_cudaDeviceGetDefaultMemPool(void **pool, int device) { (void)device; static long only; *pool = &only; return OK; }
static status emu_cudaMemPoolGetAttribute(void *pool, int attribute, uint64_t *value) { (void)pool; (void)attribute; *value = 0; return OK; }
static status emu_cudaOccupancy(int *blocks) { *blocks = 1; return OK; }
static status emu_accept(void) { return OK; }

// cudaDeviceProp of CUDA 13, by the offsets of the public structure.
static void put4(char *p, size_t offset, int value) { memcpy(p + offset, &value, sizeof value); }
static void put8(char *p, size_t offset, size_t value) { memcpy(p + offset, &value, sizeof value); }
static status emu_cudaGetDeviceProperties(char *p, int device) {
  enum { BYTES = 1008 };
  int domain = 0, bus = 0, slot = 0;
  if (device_attribute(&bus, 33, device)) return INVALID_DEVICE;
  device_attribute(&slot, 34, device);
  device_attribute(&domain, 50, device);
  const struct config *c = config();
  memset(p, 0, BYTES);
  snprintf(p, 256, "Simulated GPU, compute capability %d", c->compute_capability);
  device_uuid((unsigned char *)p + 256, device);
  put8(p, 288, c->memory_bytes), put8(p, 296, 49152), put4(p, 304, 65536), put4(p, 308, 32), put4(p, 320, 1024); // memory, shared, registers, warp, threads
  put4(p, 324, 1024), put4(p, 328, 1024), put4(p, 332, 64), put4(p, 336, 0x7fffffff), put4(p, 340, 65535), put4(p, 344, 65535), put8(p, 352, 65536);
  put4(p, 360, c->compute_capability / 10), put4(p, 364, c->compute_capability % 10), put4(p, 384, c->multiprocessors), put4(p, 392, 1);
  put4(p, 560, 1), put4(p, 568, bus), put4(p, 572, slot), put4(p, 576, domain), put4(p, 584, 2), put4(p, 588, 1), put4(p, 592, 5120), put4(p, 596, 50 << 20);
  put4(p, 604, 2048), put8(p, 624, 233472), put4(p, 632, 65536), put4(p, 668, 1), put8(p, 672, 232448);
  return OK;
}

const struct entry program_entries[] = {
  ENTRY(__cudaRegisterFatBinary), ENTRY(__cudaRegisterFunction), ALIAS(__cudaRegisterFatBinaryEnd, emu_nothing), ALIAS(__cudaUnregisterFatBinary, emu_nothing),
  ALIAS(__cudaRegisterVar, emu_nothing), ALIAS(__cudaRegisterManagedVar, emu_nothing), ENTRY(__cudaPushCallConfiguration), ENTRY(__cudaPopCallConfiguration),
  ENTRY(__cudaGetKernel), ALIAS(__cudaLaunchKernel, emu_skipped_kernel), ALIAS(cudaLaunchKernel, emu_skipped_kernel),
  ALIAS(cudaLaunchCooperativeKernel, emu_skipped_kernel), ALIAS(cudaLaunchKernelExC, emu_skipped_kernel_ex),
  ENTRY(cudaMemcpyPeerAsync), ENTRY(cudaDeviceGetDefaultMemPool), ENTRY(cudaMemPoolGetAttribute), ENTRY(cudaGetDeviceProperties),
  ALIAS(cudaOccupancyMaxActiveBlocksPerMultiprocessor, emu_cudaOccupancy), ALIAS(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, emu_cudaOccupancy),
  ALIAS(cudaProfilerStart, emu_accept), ALIAS(cudaProfilerStop, emu_accept), {0, 0}};
