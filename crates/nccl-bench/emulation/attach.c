// SPDX-License-Identifier: Apache-2.0
// Attaching to libnccl.so.2. The wheel links the CUDA runtime statically, so LD_PRELOAD cannot interpose it; but the library
// keeps its symbol table. Once the library is mapped, this file writes a jump (in memory only) at the entry of every public
// runtime function: to its emulation, or to a stub that reports the name and returns "not supported".
//
// Unless kernels are played, it also replaces one function of NCCL, to report that no operation needs a network proxy. Proxies would wait for
// kernels that never run; NCCL decides before it uses them.
#include "emu.h"
#include "play.h"
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if !defined(__x86_64__)
#error "the emulation writes x86-64 jumps; it has not been ported to another architecture"
#endif

enum { JUMP_BYTES = 13, STUBS_MAX = 1024 };

extern const struct entry stream_driver_entries[];
// The files whose CUDA runtime functions get jumps: NCCL, and with LINKWISE_EMU_PROGRAM=1 a shared runtime and the program itself.
// cuBLAS does nothing: its calls are kernels of the program.
enum object { NCCL_LIBRARY, SHARED_RUNTIME, PROGRAM, CUBLAS };
static const struct entry *const program_tables[] = {program_entries, NULL};
static const struct entry *const runtime_tables[] = {device_entries, memory_entries, stream_entries, graph_entries, NULL};
static const struct entry *const driver_tables[] = {driver_entries, vmm_entries, stream_driver_entries, NULL};

static void *look_up(const struct entry *const *tables, const char *name) {
  for (; *tables; tables++)
    for (const struct entry *e = *tables; e->name; e++)
      if (!strcmp(e->name, name)) return e->function;
  return NULL;
}

// A missing driver function looks like an older driver; NCCL decides whether it can work without the function.
static status get_entry_point(const char *name, void **function, unsigned long long flags, int *result) {
  (void)flags;
  *function = look_up(driver_tables, name);
  if (result) *result = *function ? 0 : 1; // 1: symbol not found
  if (!*function) emu_log(0, "absent: %s", name);
  return OK;
}
static status get_entry_point_by_version(const char *name, void **function, unsigned version, unsigned long long flags, int *result) {
  (void)version;
  return get_entry_point(name, function, flags, result);
}

static void *runtime_function(const char *name) {
  if (!strcmp(name, "cudaGetDriverEntryPoint")) return (void *)get_entry_point;
  if (!strcmp(name, "cudaGetDriverEntryPointByVersion")) return (void *)get_entry_point_by_version;
  return look_up(runtime_tables, name);
}

// ---- stubs: stub i loads i and jumps to emu_report()
static const char *stub_names[STUBS_MAX];
static int stub_count;
__attribute__((used, visibility("hidden"))) status emu_report(int i) {
  emu_not_emulated(stub_names[i]);
  return remember(NOT_SUPPORTED);
}
extern char emu_stubs[] __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".hidden emu_stubs\n.globl emu_stubs\n.p2align 4\nemu_stubs:\n"
        ".set i, 0\n.rept 1024\n.p2align 4\nmov $i, %edi\njmp emu_report\n.set i, i+1\n.endr\n"); // STUBS_MAX of 16 bytes each

static void write_jump(char *at, const void *to) {
  uintptr_t page = (uintptr_t)at & ~(uintptr_t)(PAGE - 1), end = (uintptr_t)at + JUMP_BYTES;
  size_t bytes = end > page + PAGE ? 2 * PAGE : PAGE;
  if (mprotect((void *)page, bytes, PROT_READ | PROT_WRITE | PROT_EXEC)) {
    emu_log(0, "cannot make the library's code writable: %s", strerror(errno));
    _exit(70);
  }
  at[0] = 0x49; at[1] = (char)0xbb;                       // movabs $to, %r11
  memcpy(at + 2, &to, sizeof to);
  at[10] = 0x41; at[11] = (char)0xff; at[12] = (char)0xe3; // jmp *%r11
  mprotect((void *)page, bytes, PROT_READ | PROT_EXEC);
}

// For the runner, and for plugins under test: the function that NCCL gets by a name; NULL if there is none.
PUBLIC void *linkwise_emu_symbol(const char *name) {
  void *emulated = runtime_function(name);
  for (int i = 0; !emulated && i < stub_count; i++)
    if (!strcmp(stub_names[i], name)) emulated = emu_stubs + 16 * i;
  return emulated;
}

struct file { char *bytes; size_t size; };

// Programs that look an entry point of NCCL up in the library find the hook.
static void hook_symbols(uintptr_t base, const struct file *f, const Elf64_Shdr *section, const Elf64_Shdr *strings) {
  Elf64_Sym *in_memory = (void *)(base + section->sh_addr);
  const Elf64_Sym *symbols = (const void *)(f->bytes + section->sh_offset);
  uintptr_t page = (uintptr_t)in_memory & ~(uintptr_t)(PAGE - 1), end = (uintptr_t)in_memory + section->sh_size;
  if (mprotect((void *)page, end - page, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
  for (size_t k = 0; k < section->sh_size / sizeof *symbols; k++) {
    const Elf64_Sym *s = &symbols[k];
    if (ELF64_ST_TYPE(s->st_info) != STT_FUNC || !s->st_shndx || s->st_name >= strings->sh_size) continue;
    void *hook = call_hook(f->bytes + strings->sh_offset + s->st_name, (void *)(base + s->st_value));
    if (hook) in_memory[k].st_value = (uintptr_t)hook - base;
  }
  mprotect((void *)page, end - page, PROT_READ | PROT_EXEC);
}

static status no_proxy(void *comm, void *operation, unsigned char *needed) {
  (void)comm; (void)operation;
  if (needed) *needed = 0;
  return OK;
}

static const void *target(const char *name, enum object o) {
  if (o == CUBLAS) return !strncmp(name, "cublas", 6) && name[6] >= 'A' && name[6] <= 'Z' ? skipped_library_call(name) : NULL;
  const void *of_program = o == NCCL_LIBRARY ? NULL : look_up(program_tables, name);
  if (of_program) return of_program;
  if (!play_mode() && !strncmp(name, "_Z15ncclProxySaveOpP8ncclComm", 29) && !strchr(name, '.')) return (void *)no_proxy;
  if (strncmp(name, "cuda", 4) || name[4] < 'A' || name[4] > 'Z') return NULL;
  if (!strcmp(name, "cudaRuntimeGetVersion")) return NULL; // a constant
  void *emulated = runtime_function(name);
  if (emulated) return emulated;
  if (stub_count == STUBS_MAX) return NULL;
  stub_names[stub_count] = strdup(name);
  return emu_stubs + 16 * stub_count++;
}

// Kernels by the address of their host function, for the player and its messages.
enum { KERNELS_MAX = 1 << 14 };
static struct { const void *at; char *name; } kernels[KERNELS_MAX];
static int kernel_count;
const char *kernel_name(const void *function) {
  for (int i = 0; i < kernel_count; i++)
    if (kernels[i].at == function) return kernels[i].name;
  return NULL;
}
static void note_symbol(const char *name, char *at, size_t bytes) {
  if (!strcmp(name, "ncclDevFuncRowToId")) play_functions((const int *)at, bytes / sizeof(int));
  if (kernel_count == KERNELS_MAX || !strstr(name, "DevKernel") || strstr(name, "device_stub")) return;
  char *copy = strdup(name);
  if (!copy) return;
  kernels[kernel_count].at = at;
  kernels[kernel_count++].name = copy;
}

static uintptr_t code_begin, code_end; // of the library
int called_by_nccl(const void *return_address) { return (uintptr_t)return_address - code_begin < code_end - code_begin; }

static int in_file(const struct file *f, uint64_t offset, uint64_t bytes) { return offset <= f->size && bytes <= f->size - offset; }

// NCCL looks NVML functions up by name. A missing one looks like an older driver; its name goes into the log.
static void report_absent_nvml(const struct file *f, const Elf64_Shdr *section) {
  if (!(section->sh_flags & SHF_ALLOC) || (section->sh_flags & (SHF_EXECINSTR | SHF_WRITE)) || section->sh_size > 64u << 20) return;
  const char *at = f->bytes + section->sh_offset, *end = at + section->sh_size;
  while ((at = memmem(at, (size_t)(end - at), "\0nvml", 5))) {
    const char *name = ++at;
    size_t length = strnlen(name, (size_t)(end - name)), letters = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
    if (length == letters && length > 8 && length < 64 && name[4] >= 'A' && name[4] <= 'Z' && !dlsym(RTLD_DEFAULT, name)) emu_log(0, "absent: %s", name);
  }
}

static int attach(const char *path, uintptr_t base, enum object o) {
  struct stat st;
  const unsigned wanted = o == SHARED_RUNTIME || o == CUBLAS ? SHT_DYNSYM : SHT_SYMTAB; // a shared runtime is stripped, but exports its functions
  int fd = open(path, O_RDONLY | O_CLOEXEC), written = 0;
  if (fd < 0 || fstat(fd, &st)) return -1;
  struct file f = {mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0), (size_t)st.st_size};
  close(fd);
  if (f.bytes == MAP_FAILED) return -1;
  const Elf64_Ehdr *header = (const void *)f.bytes;
  int ok = f.size > sizeof *header && !memcmp(header->e_ident, ELFMAG, SELFMAG) && in_file(&f, header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr));
  const Elf64_Shdr *sections = (const void *)(f.bytes + (ok ? header->e_shoff : 0));
  for (int i = 0; ok && i < header->e_shnum; i++) {
    if (o == NCCL_LIBRARY && sections[i].sh_type == SHT_PROGBITS && in_file(&f, sections[i].sh_offset, sections[i].sh_size)) report_absent_nvml(&f, &sections[i]);
    int hooks = o == NCCL_LIBRARY && sections[i].sh_type == SHT_DYNSYM && serves_program();
    if ((sections[i].sh_type != wanted && !hooks) || sections[i].sh_link >= header->e_shnum) continue;
    const Elf64_Shdr *names = &sections[sections[i].sh_link];
    if (!in_file(&f, sections[i].sh_offset, sections[i].sh_size) || !in_file(&f, names->sh_offset, names->sh_size)) continue;
    if (hooks) {
      hook_symbols(base, &f, &sections[i], names);
      continue;
    }
    const Elf64_Sym *symbols = (const void *)(f.bytes + sections[i].sh_offset);
    for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; k++) {
      const Elf64_Sym *s = &symbols[k];
      if (o == NCCL_LIBRARY && play_mode() && s->st_shndx && s->st_name < names->sh_size) note_symbol(f.bytes + names->sh_offset + s->st_name, (char *)base + s->st_value, s->st_size);
      if (ELF64_ST_TYPE(s->st_info) != STT_FUNC || !s->st_shndx || s->st_size < JUMP_BYTES || s->st_name >= names->sh_size) continue;
      const void *to = target(f.bytes + names->sh_offset + s->st_name, o);
      if (!to) continue;
      write_jump((char *)base + s->st_value, to);
      written++;
    }
  }
  munmap(f.bytes, f.size);
  emu_log(1, "attached: %d entry points, %d of them only report", written, stub_count);
  return written;
}

enum { OBJECTS_MAX = 8 };
static uintptr_t attached[OBJECTS_MAX];
static int attached_count, nccl_attached;
static void attach_nccl(const struct dl_phdr_info *info) {
  for (int k = 0; k < info->dlpi_phnum; k++)
    if (info->dlpi_phdr[k].p_type == PT_LOAD && info->dlpi_phdr[k].p_flags & PF_X) {
      code_begin = info->dlpi_addr + info->dlpi_phdr[k].p_vaddr;
      code_end = code_begin + info->dlpi_phdr[k].p_memsz;
    }
  nccl_attached = 1;
  layout_library(info->dlpi_name);
  if (attach(info->dlpi_name, info->dlpi_addr, NCCL_LIBRARY) > 0) return;
  emu_log(0, "cannot attach: %s has no symbol table with CUDA runtime functions", info->dlpi_name);
  _exit(70);
}
static int visit(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size; (void)unused;
  const char *name = info->dlpi_name ? info->dlpi_name : "";
  int nccl = strstr(name, "libnccl.so") != NULL, runtime = strstr(name, "libcudart.so") != NULL, program = !*name && !attached_count;
  int cublas = strstr(name, "libcublas.so") || strstr(name, "libcublasLt.so");
  if ((nccl && nccl_attached) || (!nccl && !(serves_program() && (runtime || program || cublas)))) return 0;
  for (int i = 0; i < attached_count; i++)
    if (attached[i] == info->dlpi_addr) return 0;
  if (attached_count == OBJECTS_MAX) return 0;
  attached[attached_count++] = info->dlpi_addr;
  if (nccl) attach_nccl(info);
  else attach(program ? "/proc/self/exe" : name, info->dlpi_addr, program ? PROGRAM : cublas ? CUBLAS : SHARED_RUNTIME);
  return 0;
}
__attribute__((constructor)) static void attach_if_linked(void) { dl_iterate_phdr(visit, NULL); }

// This library serves as NVML and as the driver.
PUBLIC void *dlopen(const char *name, int flags) {
  static void *(*real)(const char *, int);
  if (!real) real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
  if (name && (strstr(name, "libnvidia-ml.so") || strstr(name, "libcuda.so"))) {
    Dl_info self;
    dladdr((void *)attach_if_linked, &self);
    return real(self.dli_fname, RTLD_NOW);
  }
  void *handle = real(name, flags);
  if (handle && (!nccl_attached || serves_program())) dl_iterate_phdr(visit, NULL);
  return handle;
}

// NCCL 2.20 and older open libcuda.so themselves and begin with these functions.
PUBLIC status cuInit(unsigned flags) { (void)flags; return OK; }
PUBLIC status cuDriverGetVersion(int *v) { *v = config()->driver_version; return OK; }
PUBLIC status cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  (void)version; (void)flags;
  int result;
  get_entry_point(name, function, 0, &result);
  return result ? NOT_FOUND : OK;
}
