/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Slurm 26.05: the parts that differ between releases. */
#include "src/common/job_record.h"
#include "src/common/list.h"
#include "src/interfaces/gres.h"
#include "src/slurmctld/proc_req.h"
#define SHIM_RELEASE "26.05"
#define SHIM_LIST list_t *
#define SHIM_FINI void
#define SHIM_FINI_RETURN return
#define SHIM_LOCKS_MORE .select_node = WRITE_LOCK,
#define SHIM_SELECT(job, test_only) select_nodes(&(job_node_select_t) { .job_ptr = job }, test_only, false, SLURMDB_JOB_FLAG_SCHED)
#define SHIM_STATUS_ARGS uint32_t argc, char **argv, uint32_t uid, uint32_t gid
#define SHIM_SCRIPT_ARGS char *func, uint32_t job_id, uint32_t argc, char **argv, job_info_msg_t *info, char **resp
#define SHIM_ASKS_MORE(job) ((job)->details->segment_size || ((job)->details->ntasks_per_tres && (job)->details->ntasks_per_tres != NO_VAL16))
