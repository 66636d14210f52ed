// SPDX-License-Identifier: Apache-2.0
// The emulated libibverbs for programs that ask for functions with a version (dlvsym), as NCCL's InfiniBand transport does. Every function jumps to the
// one of LIBRARY, a path that the compiler's command line defines; versions.map gives all of them the version of the real library.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define FUNCTIONS(F)                                                                                                                        \
  F(ibv_get_device_list) F(ibv_free_device_list) F(ibv_get_device_name) F(ibv_open_device) F(ibv_close_device) F(ibv_query_device)          \
  F(ibv_query_port) F(ibv_query_gid) F(ibv_query_pkey) F(ibv_alloc_pd) F(ibv_dealloc_pd) F(ibv_reg_mr) F(ibv_dereg_mr) F(ibv_create_comp_channel)             \
  F(ibv_destroy_comp_channel) F(ibv_create_cq) F(ibv_destroy_cq) F(ibv_get_cq_event) F(ibv_ack_cq_events) F(ibv_create_qp) F(ibv_modify_qp) \
  F(ibv_query_qp) F(ibv_destroy_qp) F(ibv_fork_init) F(ibv_get_async_event) F(ibv_ack_async_event) F(ibv_event_type_str) F(ibv_wc_status_str)

#define JUMP(name)                                                                                            \
  __attribute__((visibility("hidden"))) void *to_##name;                                                      \
  __asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ": jmp *to_" #name "(%rip)\n.size " #name ", .-" #name "\n");
FUNCTIONS(JUMP)

static void *find(void *library, const char *name) {
  void *function = dlsym(library, name);
  if (!function) {
    fprintf(stderr, "emulated libibverbs: %s has no %s\n", LIBRARY, name);
    abort();
  }
  return function;
}

__attribute__((constructor)) static void fill(void) {
  void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "emulated libibverbs: %s\n", dlerror());
    abort();
  }
#define FILL(name) to_##name = find(library, #name);
  FUNCTIONS(FILL)
}
