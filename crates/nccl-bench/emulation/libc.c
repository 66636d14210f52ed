// SPDX-License-Identifier: Apache-2.0
// Interposed functions of libc.
//
// NCCL makes files in /dev/shm that outlive a killed process. They take 34 MB per rank, more than many containers have there
// (64 MB is usual). Here they go, as sparse files, to the folder of the run, which the bench removes.
#include "emu.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
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

// NCCL polls its sockets without sleeping; dozens of ranks share few cores, so yield when there is nothing to read.
PUBLIC ssize_t recv(int fd, void *buffer, size_t bytes, int flags) {
  static ssize_t (*real)(int, void *, size_t, int);
  if (!real) real = REAL(recv);
  ssize_t got = real(fd, buffer, bytes, flags);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    usleep(100);
    errno = EAGAIN;
  }
  return got;
}
