/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The rest of a burst buffer plugin: there is no buffer. */
extern char *bb_p_build_het_job_script(char *script, uint32_t offset) { return xstrdup(script); }
extern uint64_t bb_p_get_system_size(void) { return 0; }
extern int bb_p_load_state(bool init_config) { return SLURM_SUCCESS; }
extern int bb_p_state_pack(uid_t uid, buf_t *buffer, uint16_t version) { return SLURM_SUCCESS; }
extern int bb_p_reconfig(void) { return SLURM_SUCCESS; }
extern int bb_p_job_validate2(job_record_t *job, char **error) { return SLURM_SUCCESS; }
extern void bb_p_job_set_tres_cnt(job_record_t *job, uint64_t *count, bool locked) { }
extern time_t bb_p_job_get_est_start(job_record_t *job) { return 0; }
extern int bb_p_job_try_stage_in(SHIM_LIST queue) { return SLURM_SUCCESS; }
extern int bb_p_job_begin(job_record_t *job) { return SLURM_SUCCESS; }
extern int bb_p_job_revoke_alloc(job_record_t *job) { return SLURM_SUCCESS; }
extern int bb_p_job_start_stage_out(job_record_t *job) { return SLURM_SUCCESS; }
extern int bb_p_job_test_post_run(job_record_t *job) { return 1; }
extern int bb_p_job_test_stage_out(job_record_t *job) { return 1; }
extern int bb_p_job_cancel(job_record_t *job) { return SLURM_SUCCESS; }
extern int bb_p_run_script(SHIM_SCRIPT_ARGS) { return SLURM_SUCCESS; }
extern char *bb_p_xlate_bb_2_tres_str(char *buffer) { return NULL; }
