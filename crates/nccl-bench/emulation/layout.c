// SPDX-License-Identifier: Apache-2.0
// Offsets of the fields that a kernel reads, from the file LINKWISE_EMU_LAYOUT that the bench writes per release:
//
//   linkwise-layout 1
//   nccl 22809
//   struct conn 152
//   field conn.tail 384 64        bit offset, bit width
//   end
//
// The file is not trusted: every field must lie in its structure, and every pointer that is read through it in memory of the emulation.
#include "play.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRUCTURE_BYTES_MAX = 1 << 20, LINE_MAX_BYTES = 256 };
static const char *const structure_names[STRUCTURES] = {"args", "batch", "p2p", "coll", "collreg", "comm", "channel", "peer", "conn", "fifo"};
#define FIELD_ROW(s, f) {s, #f},
static const struct { enum structure structure; const char *name; } fields[FIELDS] = {LAYOUT_FIELDS(FIELD_ROW)};
static struct { unsigned bit, width; } places[FIELDS];
static size_t sizes[STRUCTURES];
static int version;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int structure_of(const char *name, size_t length) {
  for (int i = 0; i < STRUCTURES; i++)
    if (strlen(structure_names[i]) == length && !strncmp(structure_names[i], name, length)) return i;
  return -1;
}

static const char *take_struct(const char *name, unsigned long bytes) {
  int s = structure_of(name, strlen(name));
  if (s < 0) return NULL; // of a later format
  if (bytes < 8 || bytes > STRUCTURE_BYTES_MAX || bytes % 8) return "the size is not a multiple of 8 up to 1 MiB";
  sizes[s] = bytes;
  return NULL;
}
static const char *take_field(const char *name, unsigned long bit, unsigned long width) {
  const char *dot = strchr(name, '.');
  int s = dot ? structure_of(name, (size_t)(dot - name)) : -1;
  if (s < 0) return NULL;
  if (!sizes[s]) return "the field stands before its structure";
  if (width < 1 || bit > sizes[s] * 8 || width > sizes[s] * 8 - bit) return "the field lies outside its structure";
  for (int f = 0; f < FIELDS; f++)
    if (fields[f].structure == (enum structure)s && !strcmp(fields[f].name, dot + 1)) {
      if (width <= 64 && bit % 64 + width > 64) return "the field crosses a 64-bit boundary";
      places[f].bit = (unsigned)bit;
      places[f].width = (unsigned)width;
    }
  return NULL;
}

static void read_layout(void) {
  const char *path = getenv("LINKWISE_EMU_LAYOUT");
  FILE *file = path ? fopen(path, "r") : NULL;
  if (!file) play_refuse("layout: LINKWISE_EMU_LAYOUT names no readable file (%s)", path ? path : "it is not set");
  char line[LINE_MAX_BYTES], name[64];
  unsigned long a, b;
  int number = 0, ended = 0, format = 0;
  while (!ended && fgets(line, sizeof line, file)) {
    const char *wrong = NULL;
    number++;
    if (sscanf(line, "linkwise-layout %lu", &a) == 1) format = a == 1;
    else if (sscanf(line, "nccl %lu", &a) == 1 && a < 1000000) version = (int)a;
    else if (sscanf(line, "struct %63s %lu", name, &a) == 2) wrong = take_struct(name, a);
    else if (sscanf(line, "field %63s %lu %lu", name, &a, &b) == 3) wrong = take_field(name, a, b);
    else if (!strncmp(line, "end", 3)) ended = 1;
    else wrong = "the line is not known";
    if (!format) wrong = "it is not a layout of format 1";
    if (wrong) play_refuse("layout: %s line %d: %s; delete the file, the bench writes it again", path, number, wrong);
  }
  fclose(file);
  if (!ended || !version) play_refuse("layout: %s is cut off; delete the file, the bench writes it again", path);
  for (int s = 0; s < STRUCTURES; s++)
    if (!sizes[s]) play_refuse("layout: %s lacks struct %s", path, structure_names[s]);
  for (int f = 0; f < FIELDS; f++)
    if (!places[f].width && f != CHANNEL_workCounter) // 2.24 and 2.25 have none
      play_refuse("layout: %s lacks field %s.%s", path, structure_names[fields[f].structure], fields[f].name);
  // Arrays that are read beyond their first element.
  static const struct { enum field f; unsigned bits; } arrays[] = {{COMM_buffSizes, 96}, {CONN_buffs, 192}, {CHANNEL_down, 96}};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
    if (places[arrays[i].f].width < arrays[i].bits) play_refuse("layout: %s: field %s is too small", path, fields[arrays[i].f].name);
  if (places[PEER_send].width != 2 * 8 * sizes[CONN] || places[PEER_recv].width != 2 * 8 * sizes[CONN])
    play_refuse("layout: %s: a peer does not hold two connections each way", path);
}

void layout_need(void) { pthread_once(&once, read_layout); }
int layout_version(void) { return version; }
int layout_has(enum field f) { return places[f].width != 0; }
size_t size_of(enum structure s) { return sizes[s]; }
char *member(const void *structure, enum field f) { return (char *)structure + places[f].bit / 8; }

// Reads the 64-bit word that holds the field; every structure is a multiple of 8 bytes.
uint64_t get(const void *structure, enum field f) {
  uint64_t word;
  unsigned width = places[f].width, shift = places[f].bit % 64;
  memcpy(&word, (const char *)structure + places[f].bit / 64 * 8, sizeof word);
  word >>= shift;
  return width >= 64 ? word : word & ((1ull << width) - 1);
}
// Only for whole bytes.
void put(void *structure, enum field f, uint64_t value) {
  unsigned width = places[f].width;
  if (width && width <= 64 && width % 8 == 0) memcpy(member(structure, f), &value, width / 8);
}

size_t room_at(const void *address) {
  uintptr_t at = (uintptr_t)address, begin = at;
  struct range r;
  while (range_find(at, &r)) { // mappings may follow each other
    at = r.begin + r.bytes;
    if (r.kind != MAPPING) break;
  }
  return at - begin;
}
void *known(uint64_t address, size_t bytes, const char *what) {
  if (room_at((void *)(uintptr_t)address) < bytes)
    play_refuse("%s of %zu bytes is at 0x%llx, which is no memory of the simulated GPU; the layout does not fit the library, or the program passes memory of the host", what, bytes, (unsigned long long)address);
  return (void *)(uintptr_t)address;
}
