// SPDX-License-Identifier: Apache-2.0
// libnccl-net.so for tests that know the v11 interface only: passes every call to another version of the plugin under test.
// SHIM_PLUGIN: the plugin's path. SHIM_VERSION: 8 to 12.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
typedef void (*Fun)(void);
enum {
    INIT, DEVICES, PROPERTIES, LISTEN, CONNECT, ACCEPT, REGISTER, REGISTER_DMA_BUF, DEREGISTER, SEND, RECEIVE, FLUSH, TEST,
    CLOSE_SEND, CLOSE_RECEIVE, CLOSE_LISTEN, DEVICE_REGISTRATION, CONSUMED, VIRTUAL, FINALIZE, ATTRIBUTES, FUNCTIONS
};
struct table { const char *name; Fun f[FUNCTIONS]; };
static struct table *under;
static int version;
#define CALL(type, index) ((type)under->f[index])

// Properties: the members of all versions have one order; v8 lacks two, v12 has wider lists.
struct v8 { char *name, *pci; uint64_t guid; int ptr, global, speed, port; float latency; int comms, recvs, type, version; };
struct v11 {
    char *name, *pci; uint64_t guid; int ptr, global, flush, speed, port; float latency; int comms, recvs, type, version;
    int n, devices[4]; size_t p2p, coll; int multi;
};
struct v12 {
    char *name, *pci; uint64_t guid; int ptr, global, flush, speed, port; float latency; int comms, recvs, type, version;
    int n, devices[8]; size_t p2p, coll; int multi; int16_t rail, plane;
};

static Result init(void **ctx, uint64_t comm, void *config, void *log, void *profiler) {
    if (version >= 11) return CALL(Result (*)(void **, uint64_t, void *, void *, void *), INIT)(ctx, comm, config, log, profiler);
    *ctx = &version;
    if (version == 10) return CALL(Result (*)(void *, void *), INIT)(log, profiler);
    return CALL(Result (*)(void *), INIT)(log);
}
static Result devices(int *n) { return CALL(Result (*)(int *), DEVICES)(n); }
static Result properties(int d, struct v11 *p) {
    memset(p, 0, sizeof *p);
    if (version == 12) {
        struct v12 q;
        Result r = CALL(Result (*)(int, struct v12 *), PROPERTIES)(d, &q);
        memcpy(p, &q, offsetof(struct v11, devices) + sizeof p->devices);
        p->p2p = q.p2p, p->coll = q.coll, p->multi = q.multi;
        if (q.rail != d) return 3;
        return r;
    }
    if (version == 8) {
        struct v8 q;
        Result r = CALL(Result (*)(int, struct v8 *), PROPERTIES)(d, &q);
        *p = (struct v11){q.name, q.pci, q.guid, q.ptr, q.global, 0, q.speed, q.port, q.latency, q.comms, q.recvs, q.type, q.version,
                          1, {d}, 1 << 30, 1 << 30, 1};
        return r;
    }
    return CALL(Result (*)(int, struct v11 *), PROPERTIES)(d, p);
}
static Result listen_(void *ctx, int d, void *h, void **l) {
    if (version >= 11) return CALL(Result (*)(void *, int, void *, void **), LISTEN)(ctx, d, h, l);
    return CALL(Result (*)(int, void *, void **), LISTEN)(d, h, l);
}
static Result connect_(void *ctx, int d, void *h, void **c, void **dev) {
    if (version >= 11) return CALL(Result (*)(void *, int, void *, void **, void **), CONNECT)(ctx, d, h, c, dev);
    int config = -1;
    if (version == 10) return CALL(Result (*)(int, void *, void *, void **, void **), CONNECT)(d, &config, h, c, dev);
    return CALL(Result (*)(int, void *, void **, void **), CONNECT)(d, h, c, dev);
}
static Result send_(void *c, void *data, size_t n, int tag, void *m, void *p, void **r) {
    if (version >= 10) return CALL(Result (*)(void *, void *, size_t, int, void *, void *, void **), SEND)(c, data, n, tag, m, p, r);
    if (version == 9) return CALL(Result (*)(void *, void *, size_t, int, void *, void **), SEND)(c, data, n, tag, m, r);
    return CALL(Result (*)(void *, void *, int, int, void *, void **), SEND)(c, data, (int)n, tag, m, r);
}
static Result receive(void *c, int n, void **data, size_t *sizes, int *tags, void **m, void **p, void **r) {
    if (version >= 10)
        return CALL(Result (*)(void *, int, void **, size_t *, int *, void **, void **, void **), RECEIVE)(c, n, data, sizes, tags, m, p, r);
    if (version == 9) return CALL(Result (*)(void *, int, void **, size_t *, int *, void **, void **), RECEIVE)(c, n, data, sizes, tags, m, r);
    int small[8];
    for (int i = 0; i < n && i < 8; i++) small[i] = (int)sizes[i];
    return CALL(Result (*)(void *, int, void **, int *, int *, void **, void **), RECEIVE)(c, n, data, small, tags, m, r);
}
static Result finalize(void *ctx) { return version >= 11 ? CALL(Result (*)(void *), FINALIZE)(ctx) : 0; }
static Result attributes(void *ctx, void *a) { return version >= 11 ? CALL(Result (*)(void *, void *), ATTRIBUTES)(ctx, a) : 0; }

__attribute__((visibility("default"))) struct table ncclNetPlugin_v11;

__attribute__((constructor)) static void load(void) {
    const char *path = getenv("SHIM_PLUGIN"), *v = getenv("SHIM_VERSION");
    char name[32];
    version = v ? atoi(v) : 11;
    snprintf(name, sizeof name, "ncclNetPlugin_v%d", version);
    void *lib = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : 0;
    under = lib ? dlsym(lib, name) : 0;
    if (!under) {
        fprintf(stderr, "shim: no %s in %s\n", name, path ? path : "SHIM_PLUGIN");
        _Exit(3);
    }
    struct table t = {under->name, {0}};
    for (int i = ACCEPT; i <= CLOSE_LISTEN; i++) t.f[i] = under->f[i];
    t.f[INIT] = (Fun)init, t.f[DEVICES] = (Fun)devices, t.f[PROPERTIES] = (Fun)properties, t.f[LISTEN] = (Fun)listen_;
    t.f[CONNECT] = (Fun)connect_, t.f[SEND] = (Fun)send_, t.f[RECEIVE] = (Fun)receive;
    t.f[FINALIZE] = (Fun)finalize, t.f[ATTRIBUTES] = (Fun)attributes;
    ncclNetPlugin_v11 = t;
}
