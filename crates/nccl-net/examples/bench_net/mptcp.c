// SPDX-License-Identifier: Apache-2.0
// Preloaded into NCCL for the arm `sockets-mptcp`: stream sockets become multipath TCP. A listener that asks for one address listens on all, so that
// the other rails' subflows find it; getsockname() still tells the address that was asked for.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif
enum { FILES = 1 << 16 };
static in_addr_t asked_for[FILES];

static int known(int fd) { return fd >= 0 && fd < FILES; }

int socket(int domain, int type, int protocol) {
  int (*next)(int, int, int) = dlsym(RTLD_NEXT, "socket");
  int stream = (type & 0xf) == SOCK_STREAM && (domain == AF_INET || domain == AF_INET6);
  if (stream && (protocol == 0 || protocol == IPPROTO_TCP)) {
    int fd = next(domain, type, IPPROTO_MPTCP);
    if (fd >= 0) {
      if (known(fd)) asked_for[fd] = INADDR_ANY;
      return fd;
    }
  }
  return next(domain, type, protocol);
}

int bind(int fd, const struct sockaddr *address, socklen_t size) {
  int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
  if (address->sa_family != AF_INET || !known(fd)) return next(fd, address, size);
  struct sockaddr_in any = *(const struct sockaddr_in *)address;
  asked_for[fd] = any.sin_addr.s_addr;
  any.sin_addr.s_addr = INADDR_ANY;
  return next(fd, (struct sockaddr *)&any, sizeof any);
}

int getsockname(int fd, struct sockaddr *address, socklen_t *size) {
  int (*next)(int, struct sockaddr *, socklen_t *) = dlsym(RTLD_NEXT, "getsockname");
  int result = next(fd, address, size);
  struct sockaddr_in *in = (struct sockaddr_in *)address;
  if (result == 0 && in->sin_family == AF_INET && in->sin_addr.s_addr == INADDR_ANY && known(fd)) in->sin_addr.s_addr = asked_for[fd];
  return result;
}
