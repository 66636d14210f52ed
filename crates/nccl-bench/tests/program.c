// SPDX-License-Identifier: Apache-2.0
// An NCCL program as its author wrote it: it calls the CUDA runtime by name, launches a kernel of its own, and reduces over the ranks of RANK and
// WORLD_SIZE. Its runtime functions stand for a runtime that is linked statically; without the emulation each of them fails.
//
//   program LIBNCCL FILE_FOR_THE_ID
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char bytes[128]; } unique_id;
struct dim3 { unsigned x, y, z; };
#define MISSING(NAME, ...) __attribute__((noipa)) int NAME(__VA_ARGS__) { fprintf(stderr, "%s: no CUDA driver\n", __func__); exit(3); }
MISSING(cudaSetDevice, int device)
MISSING(cudaGetDeviceCount, int *count)
MISSING(cudaMalloc, void **p, size_t bytes)
MISSING(cudaStreamCreate, void **stream)
MISSING(cudaMemcpyAsync, void *to, const void *from, size_t bytes, int kind, void *stream)
MISSING(cudaStreamSynchronize, void *stream)
MISSING(cudaLaunchKernel, const void *f, struct dim3 grid, struct dim3 block, void **args, size_t shared, void *stream)
static void own_kernel(void) {}

#define CALL(x) do { int r = (x); if (r) { fprintf(stderr, "%s: %d\n", #x, r); return 4; } } while (0)
int main(int argc, char **argv) {
  enum { FLOATS = 100000, FLOAT32 = 7, SUM = 0, TO_GPU = 1, TO_HOST = 2 };
  if (argc != 3) return 2;
  int rank = atoi(getenv("RANK")), ranks = atoi(getenv("WORLD_SIZE")), count = 0;
  void *nccl = dlopen(argv[1], RTLD_NOW), *comm, *stream, *from, *to;
  if (!nccl) { fprintf(stderr, "%s\n", dlerror()); return 5; }
  unique_id id;
  char part[4096];
  snprintf(part, sizeof part, "%s.part", argv[2]);
  if (rank == 0) {
    CALL(((int (*)(unique_id *))dlsym(nccl, "ncclGetUniqueId"))(&id));
    FILE *f = fopen(part, "wb");
    CALL(!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename(part, argv[2]));
  }
  while (access(argv[2], R_OK)) usleep(1000);
  FILE *f = fopen(argv[2], "rb");
  CALL(!f || fread(&id, sizeof id, 1, f) != 1 || fclose(f));
  CALL(cudaGetDeviceCount(&count));
  CALL(cudaSetDevice(atoi(getenv("LOCAL_RANK"))));
  CALL(((int (*)(void **, int, unique_id, int))dlsym(nccl, "ncclCommInitRank"))(&comm, ranks, id, rank));
  CALL(cudaStreamCreate(&stream));
  CALL(cudaMalloc(&from, FLOATS * sizeof(float)) || cudaMalloc(&to, FLOATS * sizeof(float)));
  float *host = malloc(FLOATS * sizeof(float));
  for (int i = 0; i < FLOATS; i++) host[i] = (float)(rank + i % 100);
  CALL(cudaMemcpyAsync(from, host, FLOATS * sizeof(float), TO_GPU, stream));
  struct dim3 one = {1, 1, 1};
  for (int i = 0; i < 3; i++) CALL(cudaLaunchKernel((void *)own_kernel, one, one, NULL, 0, stream));
  CALL(((int (*)(const void *, void *, size_t, int, int, void *, void *))dlsym(nccl, "ncclAllReduce"))(from, to, FLOATS, FLOAT32, SUM, comm, stream));
  CALL(cudaMemcpyAsync(host, to, FLOATS * sizeof(float), TO_HOST, stream));
  CALL(cudaStreamSynchronize(stream));
  for (int i = 0; i < FLOATS; i++) {
    float expected = (float)(ranks * (ranks - 1) / 2 + ranks * (i % 100));
    if (host[i] != expected) { fprintf(stderr, "rank %d: element %d is %f, not %f\n", rank, i, host[i], expected); return 6; }
  }
  printf("rank %d local %s of %s host %s gpus %d right\n", rank, getenv("LOCAL_RANK"), getenv("LOCAL_WORLD_SIZE"), getenv("NCCL_HOSTID"), count);
  CALL(((int (*)(void *))dlsym(nccl, "ncclCommDestroy"))(comm));
  return 0;
}
