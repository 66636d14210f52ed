// SPDX-License-Identifier: Apache-2.0
// A libcudart made of malloc: the functions that tests of net plugins call when a device has host memory only.
#include <stdlib.h>
#include <string.h>
int cudaMalloc(void **p, size_t n) { return (*p = malloc(n ? n : 1)) ? 0 : 2; }
int cudaHostAlloc(void **p, size_t n, unsigned flags) { (void)flags; return cudaMalloc(p, n); }
int cudaFree(void *p) { free(p); return 0; }
int cudaFreeHost(void *p) { free(p); return 0; }
int cudaMemset(void *p, int v, size_t n) { memset(p, v, n); return 0; }
int cudaMemcpy(void *d, const void *s, size_t n, int k) { (void)k; memmove(d, s, n); return 0; }
int cudaStreamSynchronize(void *s) { (void)s; return 0; }
int cudaDeviceSynchronize(void) { return 0; }
int cudaSetDevice(int d) { (void)d; return 0; }
int cudaGetDevice(int *d) { *d = 0; return 0; }
int cudaGetDeviceCount(int *n) { *n = 8; return 0; }
const char *cudaGetErrorString(int e) { return e ? "error" : "no error"; }
