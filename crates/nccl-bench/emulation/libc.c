// SPDX-License-Identifier: Apache-2.0
// Interposed functions of libc.
//
// NCCL makes files in /dev/shm that outlive a killed process. They take 34 MB per rank, more than many containers have there
// (64 MB is usual). Here they go, as sparse files, to the folder of the run, which the bench removes.
#include "emu.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define NCCL_FILES "/dev/shm/nccl-"
#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

// The path in the folder of the run; for other files, or without a folder, the path itself.
static const char *redirected(const char *path, char out[4096]) {
  const char *folder = getenv("LINKWISE_EMU_SHARED_MEMORY");
  if (!path || !folder || strncmp(path, NCCL_FILES, strlen(NCCL_FILES))) return path;
  int n = snprintf(out, 4096, "%s/%s", folder, path + strlen("/dev/shm/"));
  return n > 0 && n < 4096 ? out : path;
}

// NCCL sends the name to other ranks, so the template keeps its folder and gets only the random letters.
PUBLIC int mkstemp(char *template) {
  char path[4096];
  const char *other = redirected(template, path);
  if (other == template) return REAL(mkstemp)(template);
  int fd = REAL(mkstemp)(path);
  if (fd >= 0) memcpy(template + strlen(template) - 6, path + strlen(path) - 6, 6);
  return fd;
}
PUBLIC int open(const char *name, int flags, ...) {
  char path[4096];
  mode_t mode = 0;
  if (flags & (O_CREAT | O_TMPFILE)) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
  }
  return REAL(open)(redirected(name, path), flags, mode);
}
PUBLIC int unlink(const char *name) {
  char path[4096];
  return REAL(unlink)(redirected(name, path));
}
// Sets the length without allocating blocks: most of these files is never touched.
PUBLIC int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  struct stat st;
  if (mode || !getenv("LINKWISE_EMU_SHARED_MEMORY") || fstat(fd, &st)) return REAL(fallocate)(fd, mode, offset, bytes);
  return st.st_size >= offset + bytes ? 0 : ftruncate(fd, offset + bytes);
}

// NCCL polls its sockets without sleeping; dozens of ranks share few cores, so its calls sleep when there is nothing to do. Calls of plugins and
// of the program do not.
enum { NAP_US = 100, YIELD_US = 50 };
#define BY_NCCL called_by_nccl(__builtin_return_address(0))
static void nap(int us, int error) {
  watch_nap((unsigned)us);
  errno = error;
}
static int empty(ssize_t got) { return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK); }
PUBLIC ssize_t recv(int fd, void *buffer, size_t bytes, int flags) {
  static ssize_t (*real)(int, void *, size_t, int);
  if (!real) real = REAL(recv);
  ssize_t got = real(fd, buffer, bytes, flags);
  if (got > 0 && BY_NCCL) watch_moved(); // heartbeats of the program are no progress
  else if (empty(got) && BY_NCCL) nap(NAP_US, EAGAIN);
  return got;
}
PUBLIC ssize_t send(int fd, const void *buffer, size_t bytes, int flags) {
  static ssize_t (*real)(int, const void *, size_t, int);
  if (!real) real = REAL(send);
  ssize_t sent = real(fd, buffer, bytes, flags);
  if (sent > 0 && BY_NCCL) watch_moved();
  else if (empty(sent) && BY_NCCL) nap(NAP_US, EAGAIN);
  return sent;
}
PUBLIC int accept(int fd, struct sockaddr *address, socklen_t *bytes) {
  static int (*real)(int, struct sockaddr *, socklen_t *);
  if (!real) real = REAL(accept);
  int got = real(fd, address, bytes);
  if (got >= 0 && BY_NCCL) watch_moved();
  else if (empty(got) && BY_NCCL) nap(2 * NAP_US, EAGAIN);
  return got;
}
PUBLIC int poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
  static int (*real)(struct pollfd *, nfds_t, int);
  if (!real) real = REAL(poll);
  int ready = real(fds, count, timeout_ms);
  if (ready == 0 && timeout_ms == 0 && BY_NCCL) nap(NAP_US, errno);
  return ready;
}
PUBLIC int sched_yield(void) {
  static int (*real)(void);
  if (!real) real = REAL(sched_yield);
  if (!BY_NCCL || !config()->play) return real();
  watch_nap(YIELD_US);
  return 0;
}
