// SPDX-License-Identifier: Apache-2.0
// The simulated host, from LINKWISE_EMU_* variables, read once; and the log.
#include "emu.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct config cfg;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_ulong unknown_calls;

static long number(const char *name, long fallback) {
  const char *s = getenv(name);
  return s && *s ? strtol(s, NULL, 0) : fallback;
}

static void read_bus_ids(const char *s) {
  while (s && *s && cfg.gpu_count < GPUS_MAX) {
    size_t n = strcspn(s, ",");
    if (n > 0 && n < BUS_ID_BYTES) memcpy(cfg.bus_ids[cfg.gpu_count++], s, n);
    s += n;
    if (*s) s++;
  }
}

// Only a list of integers, as the bench writes it. As in CUDA, the list ends at the first entry that is not a GPU.
static void read_visible(const char *s) {
  if (!s) {
    for (int i = 0; i < cfg.gpu_count; i++) cfg.visible[cfg.visible_count++] = i;
    return;
  }
  while (*s >= '0' && *s <= '9' && cfg.visible_count < GPUS_MAX) {
    long gpu = strtol(s, (char **)&s, 10);
    if (gpu >= cfg.gpu_count) break;
    cfg.visible[cfg.visible_count++] = (int)gpu;
    if (*s == ',') s++;
  }
}

// Needed when a library is loaded, before the program may have set CUDA_VISIBLE_DEVICES; the rest is read at its first CUDA call.
enum play_mode play_mode(void) {
  const char *play = getenv("LINKWISE_EMU_PLAY");
  if (!play) return PLAY_OFF;
  return !strcmp(play, "bytes") ? PLAY_BYTES : !strcmp(play, "nothing") ? PLAY_NOTHING : !strcmp(play, "wrong-parts") ? PLAY_WRONG_PARTS : PLAY_OFF;
}
int serves_program(void) { return number("LINKWISE_EMU_PROGRAM", 0) != 0; }

// Says that a program makes emulated calls, for `linkwise emulate`.
static void note_use(void) {
  const char *folder = getenv("LINKWISE_EMU_SHARED_MEMORY");
  char path[4096];
  int fd = folder && snprintf(path, sizeof path, "%s/used", folder) < (int)sizeof path ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd >= 0) close(fd);
}
static void read_config(void) {
  if (serves_program()) note_use();
  read_bus_ids(getenv("LINKWISE_EMU_BUS_IDS"));
  read_visible(getenv("CUDA_VISIBLE_DEVICES"));
  cfg.compute_capability = (int)number("LINKWISE_EMU_SM", 90);
  cfg.multiprocessors = (int)number("LINKWISE_EMU_SM_COUNT", 132);
  cfg.memory_bytes = (size_t)number("LINKWISE_EMU_MEMORY_GIB", 80) << 30;
  cfg.driver_version = (int)number("LINKWISE_EMU_DRIVER", 13020);
  cfg.multicast = number("LINKWISE_EMU_MULTICAST", 0) != 0;
  cfg.peer_to_peer = number("LINKWISE_EMU_PEER_TO_PEER", 1) != 0;
  cfg.fabric_clique = (int)number("LINKWISE_EMU_FABRIC_CLIQUE", -1);
  cfg.fabric_domain = (unsigned)number("LINKWISE_EMU_FABRIC_DOMAIN", 0);
  cfg.play = play_mode();
  cfg.refuse_kernels = number("LINKWISE_EMU_REFUSE_KERNELS", 0) != 0;
  cfg.stall_s = (double)number("LINKWISE_EMU_STALL_S", 30);
}

const struct config *config(void) {
  pthread_once(&once, read_config);
  return &cfg;
}

static void line(const char *format, va_list args) {
  char text[512];
  int n = snprintf(text, sizeof text, "linkwise-emulation: ");
  n += vsnprintf(text + n, sizeof text - (size_t)n - 1, format, args);
  if (n > (int)sizeof text - 2) n = (int)sizeof text - 2;
  text[n++] = '\n';
  if (write(2, text, (size_t)n) < 0) return; // no other place to report to
}

void emu_log(int level, const char *format, ...) {
  static atomic_int most = -1; // read apart from the rest, which the program may still change
  if (atomic_load(&most) < 0) atomic_store(&most, (int)number("LINKWISE_EMU_LOG", 0));
  if (atomic_load(&most) < level) return;
  va_list args;
  va_start(args, format);
  line(format, args);
  va_end(args);
}

void emu_not_emulated(const char *what) {
  atomic_fetch_add(&unknown_calls, 1);
  emu_log(0, "not emulated: %s", what);
}

// Number of calls that were not emulated. If there are any, the runner ends with an error.
PUBLIC unsigned long linkwise_emu_unknown_calls(void) { return atomic_load(&unknown_calls); }
