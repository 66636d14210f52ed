/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Feeds COUNT random lines to message.h, half of them changed valid ones. Built with the address and undefined-behaviour sanitizers. */
#include <stdio.h>
#include "../message.h"

static uint64_t state;
static uint32_t next(uint32_t below)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return (uint32_t) (state >> 11) % below;
}

int main(int argc, char **argv)
{
	static const char *valid[] = { "take 7 3 n1:0.1.2,n3:7 {\"linkwise\":\"took\"}", "wait 4294967294 0 x", "pass 1 2", "beat", "take 1 1 a:0" };
	long count = argc > 1 ? atol(argv[1]) : 1000, orders = 0, known = 0;
	state = argc > 2 ? strtoull(argv[2], NULL, 10) | 1 : 1;
	for (long i = 0; i < count; i++) {
		char from[256] = "", name[NODE_NAME_MAX_B];
		uint8_t gpus[GPUS_PER_NODE_MAX];
		size_t n;
		if (next(2)) {
			strcpy(from, valid[next(5)]);
			n = strlen(from);
			for (uint32_t k = next(4); k > 0; k--)
				from[next((uint32_t) n)] = (char) next(256);
		} else {
			n = next(sizeof(from) - 1);
			for (size_t k = 0; k < n; k++)
				from[k] = "take wait pass0123456789:.,n{}\"-\t\xff"[next(34)];
		}
		n = strlen(from);
		char *line = malloc(n + 1);	/* of its own size: a read beyond it is found */
		memcpy(line, from, n + 1);
		struct message m = message_of(line);
		known += m.verb != RUBBISH;
		if (m.verb == TAKE) {
			char *p = m.picks;
			int found, nodes = 0;
			while ((found = next_pick(&p, name, gpus)) > 0 && nodes++ < NODES_MAX)
				if (!name[0] || strlen(name) >= NODE_NAME_MAX_B)
					abort();
			orders += found == 0;
		}
		if (m.note && strlen(m.note) >= NOTE_MAX_B)
			abort();
		free(line);
	}
	printf("lines %ld known %ld orders %ld\n", count, known, orders);
	return 0;
}
