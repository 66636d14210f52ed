// SPDX-License-Identifier: Apache-2.0
// Coroutines: one per channel of a kernel and one per transfer, as blocks and warps are on a GPU. All fibers of a kernel run on the thread of
// its stream. A fiber gives way whenever it waits for a counter; when none has moved for a while, the thread sleeps.
//
// The watchdog: if no fiber moves for LINKWISE_EMU_STALL_S seconds, the run ends with a line for every waiting fiber. Of a whole program the watch
// over all ranks (watch.c) decides that.
#include "play.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 64 << 10, SPINS = 4, NAP_US = 30, LONG_NAP_US = 200, NAPS_SHORT = 200, EXIT_REFUSED = 68, EXIT_STUCK = 69, LINES_MAX = 64 };
struct fiber { ucontext_t context; char *stack; void (*f)(void *); void *argument; int ended; struct waits waits; struct fiber *next; };
struct scheduler { ucontext_t main; struct fiber *first, **last, *current; uint64_t moved; const volatile uint32_t *abort_flag; };
static __thread struct scheduler *own;

_Noreturn void play_refuse(const char *format, ...) {
  char text[400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  emu_log(0, "not played: %s", text);
  _exit(EXIT_REFUSED);
}

static void begin(void) {
  struct fiber *me = own->current;
  me->f(me->argument);
  me->ended = 1;
  swapcontext(&me->context, &own->main);
}

void fiber_new(void (*f)(void *), void *argument) {
  struct fiber *me = calloc(1, sizeof *me);
  if (!me || !(me->stack = malloc(STACK_BYTES)) || getcontext(&me->context)) play_refuse("no memory for a channel");
  me->f = f;
  me->argument = argument;
  me->context.uc_stack.ss_sp = me->stack;
  me->context.uc_stack.ss_size = STACK_BYTES;
  makecontext(&me->context, begin, 0);
  *own->last = me;
  own->last = &me->next;
}

void fiber_yield(struct waits w) {
  struct fiber *me = own->current;
  me->waits = w;
  swapcontext(&me->context, &own->main);
  me->waits.what = NULL;
}
void fiber_moved(uint64_t bytes) { own->moved += bytes + 1; }
int fiber_aborted(void) { return own->abort_flag && *own->abort_flag; }

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static void report_stall(double seconds, int rank) {
  int lines = 0;
  char who[32] = "";
  if (watch_serves()) snprintf(who, sizeof who, "rank %d ", rank);
  for (struct fiber *f = own->first; f && lines < LINES_MAX; f = f->next)
    if (f->waits.what) {
      lines++;
      emu_log(0, "stuck: %schannel %d step %llu %s rank %d for %.0f s", who, f->waits.channel, (unsigned long long)f->waits.step, f->waits.what, f->waits.peer, seconds);
    }
  if (!lines) emu_log(0, "stuck: %sa kernel has no waiting channel", who);
}

static struct scheduler *prepare(const volatile uint32_t *abort_flag) {
  if (!own && !(own = calloc(1, sizeof *own))) play_refuse("no memory for a kernel");
  own->abort_flag = abort_flag;
  if (!own->first) own->last = &own->first;
  return own;
}
void fibers_begin(void) { prepare(NULL); }

void fibers_run(const volatile uint32_t *abort_flag, int rank) {
  struct scheduler *s = prepare(abort_flag);
  int idle = 0, told = 0;
  double still_since = 0;
  while (s->first) {
    uint64_t before = s->moved;
    int ended = 0;
    for (struct fiber **at = &s->first; *at;) {
      struct fiber *f = *at;
      s->current = f;
      swapcontext(&s->main, &f->context);
      if (!f->ended) { at = &f->next; continue; }
      ended = 1;
      *at = f->next;
      if (s->last == &f->next) s->last = at;
      free(f->stack);
      free(f);
    }
    if (s->moved != before || ended) {
      idle = 0;
      watch_moved();
      continue;
    }
    if (++idle <= SPINS) continue;
    watch_nap(idle > NAPS_SHORT ? LONG_NAP_US : NAP_US);
    if (idle == SPINS + 1) still_since = now();
    else if (idle % 512 || fiber_aborted()) continue;
    else if (watch_serves() && watch_ends() && !told) {
      told = 1;
      report_stall(now() - still_since, rank);
    } else if (!watch_serves() && config()->stall_s > 0 && now() - still_since > config()->stall_s) {
      report_stall(now() - still_since, rank);
      _exit(EXIT_STUCK);
    }
  }
}
