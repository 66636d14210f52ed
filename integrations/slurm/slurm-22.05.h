/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Slurm 22.05 (run on 22.05.8): the parts that differ between releases. */
#include "src/common/gres.h"
#include "src/common/list.h"
#include "src/slurmctld/srun_comm.h"
#define SHIM_RELEASE "22.05"
typedef struct job_details job_details_t;
#define SHIM_LIST List
#define SHIM_FINI int
#define SHIM_FINI_RETURN return SLURM_SUCCESS
#define SHIM_LOCKS_MORE
#define SHIM_SELECT(job, test_only) select_nodes(job, test_only, NULL, NULL, false, SLURMDB_JOB_FLAG_SCHED)
#define SHIM_STATUS_ARGS uint32_t argc, char **argv
#define SHIM_SCRIPT_ARGS char *func, uint32_t job_id, uint32_t argc, char **argv, char **resp
#define SHIM_ASKS_MORE(job) ((job)->details->ntasks_per_tres && (job)->details->ntasks_per_tres != NO_VAL16)
