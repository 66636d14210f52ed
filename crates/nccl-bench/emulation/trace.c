// SPDX-License-Identifier: Apache-2.0
// The last writes into user buffers, so that a wrong byte can be reported with the channel and step that wrote it.
#include "play.h"
#include <pthread.h>
#include <stdio.h>

enum { WRITES_MAX = 1 << 16 }; // the oldest are overwritten
static struct write { uintptr_t begin; size_t bytes; int channel, peer; uint64_t step; } writes[WRITES_MAX];
static uint64_t written;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void trace_write(const void *to, size_t bytes, int channel, int peer, uint64_t step) {
  if (!bytes) return;
  pthread_mutex_lock(&lock);
  writes[written++ % WRITES_MAX] = (struct write){(uintptr_t)to, bytes, channel, peer, step};
  pthread_mutex_unlock(&lock);
}

// For the runner: channel, step and sending rank of the last write to an address; 0 if it is not known.
PUBLIC int linkwise_emu_writer(const void *address, int *channel, int *peer, uint64_t *step) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (uint64_t i = written; !found && i-- > 0 && written - i <= WRITES_MAX;) {
    const struct write *w = &writes[i % WRITES_MAX];
    if ((uintptr_t)address - w->begin >= w->bytes) continue;
    *channel = w->channel;
    *peer = w->peer;
    *step = w->step;
    found = 1;
  }
  pthread_mutex_unlock(&lock);
  return found;
}
