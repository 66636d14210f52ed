// SPDX-License-Identifier: Apache-2.0
// Copies inside a host that take the time of a link. LINKWISE_EMU_PEER_MBIT="1:20000,3:5000" gives the rate from this rank to rank 1 and 3 in
// Mbit/s. A link is used by its sender alone, so its clock is of this process. Data may run ahead of the clock by 1 ms, because threads wake late;
// long transfers have the rate on average. Only connections without a proxy are paced (P2P and SHM), and ranks count in communicators of all
// ranks of the job.
#include "play.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PEERS_MAX = 256 };
static const double AHEAD_S = 1e-3;
static double bytes_per_s[PEERS_MAX], free_at[PEERS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void read_rates(void) {
  const char *s = getenv("LINKWISE_EMU_PEER_MBIT");
  int peer, used;
  double mbit;
  while (s && sscanf(s, "%d:%lf%n", &peer, &mbit, &used) == 2) {
    if (peer >= 0 && peer < PEERS_MAX && mbit > 0) bytes_per_s[peer] = mbit * 1e6 / 8;
    s += used;
    if (*s == ',') s++;
  }
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// The time at which the link has carried these bytes; 0 if the link takes no time.
double pace_reserve(const struct link *l, size_t bytes) {
  pthread_once(&once, read_rates);
  if (l->fifo || l->peer >= PEERS_MAX || bytes_per_s[l->peer] <= 0) return 0;
  double t = now();
  pthread_mutex_lock(&lock);
  double begin = free_at[l->peer] > t ? free_at[l->peer] : t, end = begin + (double)bytes / bytes_per_s[l->peer];
  free_at[l->peer] = end;
  pthread_mutex_unlock(&lock);
  return end;
}
int pace_passed(double end) { return end <= 0 || end <= now() + AHEAD_S; }
