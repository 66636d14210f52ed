// A network plugin of a site, as far as the test needs one: a name, init and devices in every table.
static int init(void) { return 0; }
static int devices(int* count) { *count = 3; return 0; }
#define TABLE(version, words) \
  const void* ncclNetPlugin_v##version[words] = {"own" #version, (const void*)init, (const void*)devices}
TABLE(8, 19);
TABLE(9, 20);
TABLE(10, 20);
TABLE(11, 22);
#ifndef OLD
TABLE(12, 22);
#endif
