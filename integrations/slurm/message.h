/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The agent's messages: one line of printable ASCII each, at most LINE_MAX_B bytes. No Slurm, no allocation: a test fuzzes this file alone.
 *
 *   take JOB SEQ NODE:I.I.I,NODE:I NOTE     these GPUs; NOTE goes into the job's AdminComment
 *   wait JOB SEQ NOTE                       no set of free GPUs fits: Slurm may try by itself
 *   pass JOB SEQ NOTE                       not a job for linkwise: Slurm places it
 *   soon JOB SEQ NOTE                       orders before this answer get these GPUs: ask again with what is left
 *   beat                                    the agent lives
 */
#ifndef LINKWISE_MESSAGE_H
#define LINKWISE_MESSAGE_H
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_B = 65536, NOTE_MAX_B = 512, NODES_MAX = 1024, NODE_NAME_MAX_B = 128, GPUS_PER_NODE_MAX = 1024 };
enum verb { TAKE, WAIT, PASS, SOON, BEAT, RUBBISH };
struct message { enum verb verb; uint32_t job, seq; char *picks, *note; };

/* A decimal number without sign or leading blank, up to max; moves *p behind it. Returns -1 if there is none. */
static int64_t number_at(char **p, int64_t max)
{
	int64_t n = 0;
	if (**p < '0' || **p > '9')
		return -1;
	for (; **p >= '0' && **p <= '9'; (*p)++)
		if ((n = n * 10 + (**p - '0')) > max)
			return -1;
	return n;
}

/* Reads one line without its newline. Cuts it into strings: `picks` and `note` point into it. */
static struct message message_of(char *line)
{
	static const char *words[] = { "take ", "wait ", "pass ", "soon " };
	struct message m = { .verb = RUBBISH }, bad = m;
	int64_t job, seq;
	if (!strcmp(line, "beat"))
		return (struct message) { .verb = BEAT };
	for (char *p = line; *p; p++)
		if (*p < ' ' || *p > '~')
			return bad;
	for (int v = 0; v < 4; v++)
		if (!strncmp(line, words[v], 5))
			m.verb = (enum verb) v;
	if (m.verb == RUBBISH)
		return bad;
	line += 5;
	if ((job = number_at(&line, UINT32_MAX - 1)) <= 0 || *line++ != ' ' || (seq = number_at(&line, UINT32_MAX - 1)) < 0)
		return bad;
	m.job = (uint32_t) job, m.seq = (uint32_t) seq;
	if (m.verb == TAKE) {
		if (*line++ != ' ')
			return bad;
		m.picks = line;
		line += strcspn(line, " ");
		if (line == m.picks)
			return bad;
	}
	if (*line && *line != ' ')
		return bad;
	if (*line)
		*line++ = 0;
	m.note = line;
	for (char *c = line; m.verb != TAKE && *c; c++)	/* a reason is quoted in a comment */
		*c = *c == '"' || *c == '\\' ? ' ' : *c;
	if (strlen(line) >= NOTE_MAX_B)
		line[NOTE_MAX_B - 1] = 0;
	return m;
}

/* The next node of `picks`: its name and, in `gpus` (of GPUS_PER_NODE_MAX bytes), a 1 for every index. Returns the number of indices,
 * 0 at the end, -1 for rubbish: no name, no index, an index twice or too large. */
static int next_pick(char **picks, char name[NODE_NAME_MAX_B], uint8_t gpus[GPUS_PER_NODE_MAX])
{
	size_t n = strcspn(*picks, ":");
	int count = 0;
	if (!**picks)
		return 0;
	if (!n || n >= NODE_NAME_MAX_B || !(*picks)[n] || memchr(*picks, ',', n))
		return -1;
	memcpy(name, *picks, n);
	name[n] = 0;
	memset(gpus, 0, GPUS_PER_NODE_MAX);
	*picks += n;
	do {
		(*picks)++;
		int64_t i = number_at(picks, GPUS_PER_NODE_MAX - 1);
		if (i < 0 || gpus[i])
			return -1;
		gpus[i] = 1, count++;
	} while (**picks == '.');
	if (**picks == ',' && (*picks)[1])
		(*picks)++;
	else if (**picks)
		return -1;
	return count;
}
#endif
