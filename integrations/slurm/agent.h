/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The connection to the agent: a Unix socket, lines in, lines out, nothing that blocks. No Slurm: a test fuzzes this file and message.h alone.
 * The caller keeps two threads from the output at once. Memory: LINE_MAX_B of input, OUT_B of output. */
#ifndef LINKWISE_AGENT_H
#define LINKWISE_AGENT_H
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "message.h"

enum { OUT_B = 1 << 22 };
static volatile int conn = -1;
static int listener = -1;
static char in[LINE_MAX_B + 1], out[OUT_B];
static size_t in_b, out_b;

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* The value of `name=` in a list with commas; `value` stays as it is without one. */
static void option(const char *list, const char *name, char *value, size_t size)
{
	const char *at = list ? strstr(list, name) : NULL;
	if (at)
		snprintf(value, size, "%.*s", (int) strcspn(at + strlen(name), ","), at + strlen(name));
}

/* The length of the beginning of a text that is a word of a question. */
static int plain(const char *text)
{
	size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789=%.-_");
	return n < 40 ? (int) n : 40;
}

/* Listens there; only this user and root may connect. A file that is no socket stays. */
static bool listen_at(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct stat old;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	if (!lstat(path, &old) && S_ISSOCK(old.st_mode))
		unlink(path);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (listener >= 0 && strlen(path) < sizeof(addr.sun_path) && !fchmod(listener, 0600) &&
	    !bind(listener, (struct sockaddr *) &addr, sizeof(addr)) && !listen(listener, 4))
		return true;
	close(listener);
	return false;
}

/* Adds to the output; if it is full, out_b is OUT_B - 1 afterwards. */
__attribute__((format(printf, 1, 2))) static void put(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vsnprintf(out + out_b, OUT_B - out_b, format, args);
	va_end(args);
	out_b = n < 0 || (size_t) n >= OUT_B - out_b ? OUT_B - 1 : out_b + (size_t) n;
}

/* Writes what the socket takes at once; true if there is more. A broken connection is found by the reader. */
static bool flush(void)
{
	ssize_t n = out_b && conn >= 0 ? send(conn, out, out_b, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
	if (n > 0)
		memmove(out, out + n, out_b -= (size_t) n);
	return out_b > 0;
}

/* Reads what is there, and gives every line to `obey`. False: the connection has ended, or `obey` does not understand a line. */
static bool receive(bool (*obey)(char *line))
{
	ssize_t n = recv(conn, in + in_b, LINE_MAX_B - in_b, MSG_DONTWAIT);
	char *start = in, *end;
	if (n <= 0)
		return n < 0 && (errno == EAGAIN || errno == EINTR);
	for (in_b += (size_t) n; (end = memchr(start, '\n', (size_t) (in + in_b - start))); start = end + 1) {
		*end = 0;
		if (strlen(start) != (size_t) (end - start) || !obey(start))
			return false;
	}
	in_b -= (size_t) (start - in);
	memmove(in, start, in_b);
	return in_b < LINE_MAX_B;
}
#endif
