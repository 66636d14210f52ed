// SPDX-License-Identifier: Apache-2.0
// Arithmetic of reductions, equal to the bit to a GPU's: every step rounds once to the element's type. Sums and products of fp16 and bf16
// are exact in float up to its rounding, which cannot change the second one (24 bits >= 2 * 11 + 2), so float and then one rounding suffice.
#include "play.h"
#include <math.h>
#include <string.h>

size_t element_bytes(enum element e) {
  static const size_t bytes[ELEMENTS] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[e];
}
static const char *const element_names[ELEMENTS] = {"int8", "uint8", "int32", "uint32", "int64", "uint64", "fp16", "fp32", "fp64", "bf16", "fp8 e4m3", "fp8 e5m2"};

void op_check(const struct op *o) {
  if (o->element == F8E4M3 || o->element == F8E5M2) play_refuse("reductions of %s", element_names[o->element]);
}

// ---- 16-bit floats, to and from float; rounds to nearest, ties to even
static float bits_float(uint32_t b) { float f; memcpy(&f, &b, sizeof f); return f; }
static uint32_t float_bits(float f) { uint32_t b; memcpy(&b, &f, sizeof b); return b; }
static float from_half(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13);
  if (exponent) return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
  float small = (float)fraction * 0x1p-24f;
  return sign ? -small : small;
}
static uint16_t to_half(float f) {
  uint32_t b = float_bits(f), sign = b >> 16 & 0x8000, magnitude = b & 0x7fffffff;
  if (magnitude > 0x7f800000) return (uint16_t)(0x7fff); // NaN, as a GPU writes it
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // rounds to infinity
  if (magnitude < 0x38800000) { // below the normal numbers: adding 0.5 leaves the result in the low bits, rounded
    uint32_t rounded = float_bits(bits_float(magnitude) + 0.5f) - float_bits(0.5f);
    return (uint16_t)(sign | rounded);
  }
  uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}
static float from_bf16(uint16_t h) { return bits_float((uint32_t)h << 16); }
static uint16_t to_bf16(float f) {
  uint32_t b = float_bits(f);
  if ((b & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// Minimum and maximum as a GPU's fminf and fmaxf: the number if one of both is not a number, the canonical NaN if both are, and -0 below +0.
static float least(float x, float y) {
  if (x != x || y != y) return x != x ? y != y ? bits_float(0x7fffffff) : y : x;
  return x < y || (x == y && float_bits(x) >> 31) ? x : y;
}
static float greatest(float x, float y) { return x != x && y != y ? bits_float(0x7fffffff) : -least(-x, -y); }
static double least_double(double x, double y) {
  if (x != x || y != y) return x != x ? y : x;
  return x < y || (x == y && signbit(x)) ? x : y;
}
static double greatest_double(double x, double y) { return -least_double(-x, -y); }

// The low bit of a minimum-or-maximum's argument says maximum.
#define APPLY(READ, WRITE, LEAST, GREATEST) \
  for (size_t i = 0; i < n; i++) { \
    __typeof__(READ(x[0])) l = READ(x[i]), r = READ(y[i]); \
    switch (o->reduction) { \
    case PRODUCT: d[i] = WRITE(l * r); break; \
    case MIN_MAX: d[i] = WRITE(o->argument & 1 ? GREATEST(l, r) : LEAST(l, r)); break; \
    default: d[i] = WRITE(l + r); \
    } \
  }
#define SAME(v) (v)
#define PLAIN(T, LEAST, GREATEST) { T *d = (T *)to; const T *x = (const T *)a, *y = (const T *)b; APPLY(SAME, SAME, LEAST, GREATEST) return; }
// Integers wrap round, as on a GPU: unsigned arithmetic, signed comparison.
#define INTEGER(T, U) { T *d = (T *)to; const T *x = (const T *)a, *y = (const T *)b; \
  for (size_t i = 0; i < n; i++) { \
    switch (o->reduction) { \
    case PRODUCT: d[i] = (T)((U)x[i] * (U)y[i]); break; \
    case MIN_MAX: d[i] = (o->argument & 1 ? x[i] > y[i] : x[i] < y[i]) ? x[i] : y[i]; break; \
    default: d[i] = (T)((U)x[i] + (U)y[i]); \
    } \
  } return; }
#define NARROW(READ, WRITE) { uint16_t *d = (uint16_t *)to; const uint16_t *x = (const uint16_t *)a, *y = (const uint16_t *)b; APPLY(READ, WRITE, least, greatest) return; }

void op_reduce(const struct op *o, void *to, const void *a, const void *b, size_t n) {
  switch (o->element) {
  case I8: INTEGER(int8_t, unsigned)
  case U8: INTEGER(uint8_t, unsigned)
  case I32: INTEGER(int32_t, uint32_t)
  case U32: INTEGER(uint32_t, uint32_t)
  case I64: INTEGER(int64_t, uint64_t)
  case U64: INTEGER(uint64_t, uint64_t)
  case F32: PLAIN(float, least, greatest)
  case F64: PLAIN(double, least_double, greatest_double)
  case F16: NARROW(from_half, to_half)
  case BF16: NARROW(from_bf16, to_bf16)
  default: op_check(o);
  }
}

// A sum with a factor multiplies every input once, before it is added.
int op_scales(const struct op *o) { return o->reduction == SCALED_SUM; }
#define SCALE(T) { T factor; memcpy(&factor, &o->argument, sizeof factor); T *d = (T *)to; const T *x = (const T *)from; for (size_t i = 0; i < n; i++) d[i] = x[i] * factor; return; }
#define SCALE_INTEGER(T, U) { T factor; memcpy(&factor, &o->argument, sizeof factor); T *d = (T *)to; const T *x = (const T *)from; for (size_t i = 0; i < n; i++) d[i] = (T)((U)x[i] * (U)factor); return; }
#define SCALE_NARROW(READ, WRITE) { uint16_t factor; memcpy(&factor, &o->argument, sizeof factor); uint16_t *d = to; const uint16_t *x = from; for (size_t i = 0; i < n; i++) d[i] = WRITE(READ(x[i]) * READ(factor)); return; }
void op_scale(const struct op *o, void *to, const void *from, size_t n) {
  if (!op_scales(o)) {
    if (to != from) memmove(to, from, n * o->bytes);
    return;
  }
  switch (o->element) {
  case I8: SCALE_INTEGER(int8_t, unsigned)
  case U8: SCALE_INTEGER(uint8_t, unsigned)
  case I32: SCALE_INTEGER(int32_t, uint32_t)
  case U32: SCALE_INTEGER(uint32_t, uint32_t)
  case I64: SCALE_INTEGER(int64_t, uint64_t)
  case U64: SCALE_INTEGER(uint64_t, uint64_t)
  case F32: SCALE(float)
  case F64: SCALE(double)
  case F16: SCALE_NARROW(from_half, to_half)
  case BF16: SCALE_NARROW(from_bf16, to_bf16)
  default: op_check(o);
  }
}

// An average of integers is a sum and one division; the argument holds twice the divisor, plus one for signed types.
#define DIVIDE(T) { T *d = (T *)to; for (size_t i = 0; i < n; i++) d[i] = (T)(d[i] / (T)divisor); return; }
void op_finish(const struct op *o, void *to, size_t n) {
  if (o->reduction != SUM_THEN_DIVIDE) return;
  uint64_t divisor = o->argument >> 1;
  if (!divisor) play_refuse("an average whose divisor is zero");
  switch (o->element) {
  case I8: DIVIDE(int8_t)
  case U8: DIVIDE(uint8_t)
  case I32: DIVIDE(int32_t)
  case U32: DIVIDE(uint32_t)
  case I64: DIVIDE(int64_t)
  case U64: DIVIDE(uint64_t)
  default: play_refuse("an average of %s by division", element_names[o->element]);
  }
}
