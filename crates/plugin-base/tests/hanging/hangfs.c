/* A file system that hangs: FUSE without a program that answers. Every access waits until this program ends.
 *
 *   hangfs FOLDER      prints "mounted" and waits for the end of its standard input; 9: this machine has no FUSE, or no root
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

int main(int argc, char **argv) {
  char options[100], byte;
  if (argc != 2) return 2;
  int fuse = open("/dev/fuse", O_RDWR);
  if (fuse < 0) return printf("/dev/fuse: %s\n", strerror(errno)), 9;
  snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
  if (mount("hangfs", argv[1], "fuse", MS_NOSUID | MS_NODEV, options)) return printf("mount: %s\n", strerror(errno)), 9;
  puts("mounted"), fflush(stdout);
  while (read(0, &byte, 1) > 0) {}
  umount2(argv[1], MNT_DETACH);
  return 0; /* closing /dev/fuse ends every access that waits */
}
