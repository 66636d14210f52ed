/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A SPANK plugin: `srun|sbatch|salloc --linkwise=off|observe|tune` sets the variables of linkwise's NCCL plugin for the job's tasks.
 *
 * In plugstack.conf, on submit hosts and nodes:
 *   optional /usr/lib/linkwise/slurm/spank_linkwise.so [plugin=PATH of liblinkwise_nccl.so] [default=off|observe|tune]
 *
 * A variable that the user has set stays. Nothing here fails a job: what is wrong is told, and the job runs without linkwise. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "slurm/spank.h"

SPANK_PLUGIN(linkwise, 1)

static const char *library = "/usr/lib/linkwise/liblinkwise_nccl.so", *mode;

/* The plugin's mode by the option's word: docs/plugin.md. NULL: no such word. */
static const char *mode_of(const char *word)
{
	return !word ? NULL : !strcmp(word, "off") ? "off" : !strcmp(word, "observe") ? "observe" : !strcmp(word, "tune") ? "adaptive" : NULL;
}

static int chosen(int value, const char *word, int remote)
{
	if (!(mode = mode_of(word)) && !remote)
		slurm_error("--linkwise=%s is not off, observe or tune; the job runs without linkwise", word ? word : "");
	mode = mode ? mode : "off";
	return ESPANK_SUCCESS;
}

static struct spank_option option = { "linkwise", "off|observe|tune", "watch (observe) or choose (tune) NCCL's algorithms with linkwise", 1, 0, chosen };

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	for (int i = 0; i < argc; i++)
		if (!strncmp(argv[i], "plugin=", 7))
			library = argv[i] + 7;
		else if (strncmp(argv[i], "default=", 8) || !(mode = mode_of(argv[i] + 8)))
			slurm_error("linkwise: plugstack.conf: %s is not plugin=PATH or default=off|observe|tune", argv[i]);
	if (spank_context() != S_CTX_JOB_SCRIPT && spank_context() != S_CTX_SLURMD && spank_option_register(spank, &option) != ESPANK_SUCCESS)
		slurm_error("linkwise: no option --linkwise here");
	return ESPANK_SUCCESS;
}

/* For the shell of salloc: its steps inherit the variables. */
int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
	if (mode && spank_context() == S_CTX_ALLOCATOR)
		setenv("SPANK_LINKWISE", mode, 1);
	return ESPANK_SUCCESS;
}

/* In every task, as the user, before the program. */
int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
	static char inherited[16];
	if (!mode && spank_getenv(spank, "SPANK_LINKWISE", inherited, sizeof(inherited)) == ESPANK_SUCCESS && inherited[0])
		mode = inherited;
	if (!mode)
		return ESPANK_SUCCESS;
	spank_setenv(spank, "SPANK_LINKWISE", mode, 1);
	spank_setenv(spank, "LINKWISE_MODE", mode, 0);
	if (!strcmp(mode, "off"))
		return ESPANK_SUCCESS;
	if (access(library, R_OK)) {
		slurm_error("linkwise: no %s on this node; the task runs without linkwise", library);
		spank_setenv(spank, "LINKWISE_MODE", "off", 1);
		return ESPANK_SUCCESS;
	}
	spank_setenv(spank, "NCCL_TUNER_PLUGIN", library, 0);
	spank_setenv(spank, "NCCL_PROFILER_PLUGIN", library, 0);
	return ESPANK_SUCCESS;
}
