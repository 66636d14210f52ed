/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Feeds bytes to message.h and agent.h as an agent would send them: in parts, over a socket. Two programs from one file:
 * with -DLIBFUZZER a target of clang's libFuzzer (scripts/fuzz-slurm.sh), else `fuzz COUNT SEED [FOLDER]`, which changes valid lines at random. */
#define _GNU_SOURCE
#include <poll.h>
#include "../agent.h"

static long lines, known, orders;

static void must(bool holds)
{
	if (!holds)
		abort();
}

/* One line of its own size in memory: a read beyond it is found. */
static bool one_line(char *text)
{
	static uint8_t gpus[GPUS_PER_NODE_MAX];
	char name[NODE_NAME_MAX_B], *line = strdup(text);
	struct message m = message_of(line);
	lines++, known += m.verb != RUBBISH;
	must(plain(text) >= 0 && plain(text) <= 40 && (size_t) plain(text) <= strlen(text));
	if (m.verb == TAKE) {
		char *p = m.picks;
		int found, nodes = 0;
		while ((found = next_pick(&p, name, gpus)) > 0 && nodes++ < NODES_MAX) {
			int set = 0;
			for (int i = 0; i < GPUS_PER_NODE_MAX; i++)
				set += gpus[i];
			must(set == found && name[0] && strlen(name) < NODE_NAME_MAX_B);
		}
		orders += found == 0;
	}
	if (m.verb == TAKE || m.verb == WAIT || m.verb == PASS || m.verb == SOON) {
		must(m.job > 0 && m.note && strlen(m.note) < NOTE_MAX_B);
		must(m.verb == TAKE || !strpbrk(m.note, "\"\\"));
		put("took %u %u\n", m.job, m.seq);
	}
	free(line);
	return m.verb != RUBBISH;
}

/* The bytes arrive in parts of random sizes; the output is written to a peer that reads nothing. */
static void one_connection(const uint8_t *data, size_t size)
{
	int pair[2];
	char text[16] = "5";
	must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
	conn = pair[0], in_b = out_b = 0;
	for (size_t at = 0, part; at < size; at += part) {
		part = 1 + (size_t) data[at] * 37;
		part = part > size - at ? size - at : part;
		ssize_t n = send(pair[1], data + at, part, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n <= 0)
			break;
		part = (size_t) n;
		if (!receive(one_line))
			break;
		flush();
		must(in_b < LINE_MAX_B && out_b < OUT_B);
	}
	char *options = strndup((const char *) data, size > 300 ? 300 : size);
	option(options, "linkwise_silence=", text, sizeof(text));
	must(strlen(text) < sizeof(text));
	free(options);
	close(pair[0]), close(pair[1]);
	conn = -1;
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	one_connection(data, size);
	return 0;
}
#else
static uint64_t state;
static uint32_t next(uint32_t below)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return (uint32_t) (state >> 11) % below;
}

/* The socket is for this user only, takes the place of an old socket, and never that of a file. */
static void sockets(const char *folder)
{
	char path[96], file[96];
	struct stat is;
	snprintf(path, sizeof(path), "%s/s", folder), snprintf(file, sizeof(file), "%s/f", folder);
	for (int i = 0; i < 2; i++) {
		must(listen_at(path) && !lstat(path, &is) && S_ISSOCK(is.st_mode) && (is.st_mode & 0777) == 0600);
		close(listener);
	}
	fclose(fopen(file, "w"));
	must(!listen_at(file) && !lstat(file, &is) && S_ISREG(is.st_mode));
	must(!listen_at("/nowhere/at/all") && now_ms() > 0);
}

int main(int argc, char **argv)
{
	static const char *valid[] = { "take 7 3 n1:0.1.2,n3:7 {\"linkwise\":\"took\"}\n", "wait 4294967294 0 x\n", "pass 1 2\n", "soon 3 4 y\n", "beat\n", "take 1 1 a:0\n" };
	long count = argc > 1 ? atol(argv[1]) : 1000;
	state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
	if (argc > 3)
		sockets(argv[3]);
	for (long i = 0; i < count; i++) {
		char from[1024] = "";
		size_t n = 0;
		for (uint32_t k = 1 + next(6); k > 0; k--)
			n = (size_t) (stpcpy(from + n, valid[next(6)]) - from);
		if (next(2))
			for (uint32_t k = next(4); k > 0; k--)
				from[next((uint32_t) n)] = "take wait pass0123456789:.,n{}\"-\t\xff\n"[next(35)];
		else
			for (size_t k = 0; k < n; k++)
				from[k] = next(8) ? from[k] : "take wait pass0123456789:.,n{}\"-\t\xff\n"[next(35)];
		uint8_t *copy = malloc(n);
		memcpy(copy, from, n);
		one_connection(copy, n);
		free(copy);
	}
	printf("lines %ld known %ld orders %ld\n", lines, known, orders);
	return 0;
}
#endif
