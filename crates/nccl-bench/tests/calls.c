// SPDX-License-Identifier: Apache-2.0
// Programs whose ranks make the same calls, though not in the same way, and programs whose ranks do not.
//
//   calls LIBNCCL FOLDER_FOR_IDS MODE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char bytes[128]; } unique_id;
#define MISSING(NAME, ...) __attribute__((noipa)) int NAME(__VA_ARGS__) { fprintf(stderr, "%s: no CUDA driver\n", __func__); exit(3); }
MISSING(cudaSetDevice, int device)
MISSING(cudaMalloc, void **p, size_t bytes)
MISSING(cudaStreamCreateWithFlags, void **stream, unsigned flags)
MISSING(cudaStreamSynchronize, void *stream)
MISSING(cudaDeviceSynchronize, void)

enum { INT8 = 0, INT32 = 2, FLOAT32 = 7, SUM = 0, MAX = 2, N = 1000 };
static void *nccl, *a, *b, *s, *s2;
static int rank, ranks;
#define CALL(x) do { int r = (x); if (r) { fprintf(stderr, "rank %d: %s: %d\n", rank, #x, r); exit(4); } } while (0)
#define N_(name) ((int (*)())dlsym(nccl, #name))
static void *connected(const char *folder, const char *tag) {
  unique_id id;
  void *comm;
  char path[4096], part[4200];
  snprintf(path, sizeof path, "%s/%s", folder, tag);
  snprintf(part, sizeof part, "%s.part", path);
  if (rank == 0) {
    CALL(N_(ncclGetUniqueId)(&id));
    FILE *f = fopen(part, "wb");
    CALL(!f || fwrite(&id, sizeof id, 1, f) != 1 || fclose(f) || rename(part, path));
  }
  while (access(path, R_OK)) usleep(1000);
  FILE *f = fopen(path, "rb");
  CALL(!f || fread(&id, sizeof id, 1, f) != 1 || fclose(f));
  CALL(((int (*)(void **, int, unique_id, int))dlsym(nccl, "ncclCommInitRank"))(&comm, ranks, id, rank));
  return comm;
}
static void reduce(size_t count, int operation, void *comm, void *stream) { CALL(N_(ncclAllReduce)(a, b, count, FLOAT32, operation, comm, stream)); }
#define IS(m) (!strcmp(argv[3], m))

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  rank = atoi(getenv("RANK")), ranks = atoi(getenv("WORLD_SIZE"));
  if (!(nccl = dlopen(argv[1], RTLD_NOW))) return 5;
  CALL(cudaSetDevice(atoi(getenv("LOCAL_RANK"))));
  if (IS("left") && rank) return 0;
  void *one = connected(argv[2], "one");
  CALL(cudaStreamCreateWithFlags(&s, 1) || cudaStreamCreateWithFlags(&s2, 1) || cudaMalloc(&a, 1 << 20) || cudaMalloc(&b, 1 << 20));
  reduce(N, SUM, one, s);
  CALL(cudaStreamSynchronize(s));
  if (IS("count")) reduce(rank ? N / 2 : N, SUM, one, s);
  if (IS("operation")) reduce(N, rank ? MAX : SUM, one, s);
  if (IS("root")) CALL(N_(ncclBroadcast)(a, b, (size_t)N, FLOAT32, rank, one, s));
  if (IS("kind")) CALL(rank ? N_(ncclBroadcast)(a, b, (size_t)N, FLOAT32, 0, one, s) : N_(ncclAllReduce)(a, b, (size_t)N, FLOAT32, SUM, one, s));
  if (IS("order")) reduce(rank ? 10 : N, SUM, one, s), reduce(rank ? N : 10, SUM, one, s);
  if (IS("length")) {
    CALL(N_(ncclGroupStart)());
    if (rank == 0) CALL(N_(ncclSend)(a, (size_t)N, FLOAT32, 1, one, s));
    if (rank == 1) CALL(N_(ncclRecv)(b, (size_t)N + 1, FLOAT32, 0, one, s));
    CALL(N_(ncclGroupEnd)());
  }
  if (IS("missing") && rank == 0) reduce(N, SUM, one, s);
  if (IS("late")) { // outside NCCL and CUDA for longer than the limit
    if (rank) sleep(10);
    reduce(N, SUM, one, s);
  }
  if (IS("same")) {
    void *two = connected(argv[2], "two"), *part;
    // Bytes in another type, empty calls of one rank, and messages in another order are the same calls.
    CALL(N_(ncclBroadcast)(a, b, (size_t)(rank % 2 ? 4 * N : N), rank % 2 ? INT8 : FLOAT32, 1, one, s));
    if (rank == 0) reduce(0, MAX, one, s);
    CALL(N_(ncclGroupStart)());
    for (int k = 0; k < ranks; k++) {
      int peer = rank % 2 ? ranks - 1 - k : k;
      if (rank % 2) CALL(N_(ncclRecv)(b, (size_t)(N + peer), FLOAT32, peer, one, s));
      CALL(N_(ncclSend)(a, (size_t)(N + rank), FLOAT32, peer, one, s));
      if (rank % 2 == 0) CALL(N_(ncclRecv)(b, (size_t)(4 * (N + peer)), INT8, peer, one, s));
    }
    CALL(N_(ncclGroupEnd)());
    // Communicators in another order, in a group.
    CALL(N_(ncclGroupStart)());
    reduce(rank % 2 ? 10 : N, SUM, rank % 2 ? two : one, rank % 2 ? s2 : s);
    reduce(rank % 2 ? N : 10, SUM, rank % 2 ? one : two, rank % 2 ? s : s2);
    CALL(N_(ncclGroupEnd)());
    CALL(cudaDeviceSynchronize());
    // The parts of a split communicator make different calls.
    CALL(N_(ncclCommSplit)(one, rank % 2, -rank, &part, NULL));
    for (int i = 0; i <= rank % 2; i++) reduce(rank % 2 ? 10 : N, rank % 2 ? MAX : SUM, part, s);
    CALL(N_(ncclReduce)(a, b, (size_t)N, INT32, MAX, rank % 2, part, s));
    CALL(cudaDeviceSynchronize());
    CALL(N_(ncclCommDestroy)(part) || N_(ncclCommDestroy)(two));
    reduce(N, MAX, one, s);
  }
  CALL(cudaStreamSynchronize(s));
  CALL(N_(ncclCommDestroy)(one));
  printf("rank %d done\n", rank);
  return 0;
}
