/* SPDX-License-Identifier: GPL-2.0-or-later */
/* burst_buffer/linkwise: exact GPUs for jobs at the moment at which Slurm would start them.
 *
 * Slurm asks a burst buffer plugin before it chooses nodes for a job that it starts now. This plugin answers "not yet" once, asks an agent over a
 * Unix socket for the GPUs, and starts the job on exactly these: under the controller's locks it marks every other free GPU of the chosen nodes as
 * taken, calls Slurm's select_nodes(), and removes the marks. No field of a waiting job is changed: priority, age, order and backfill stay Slurm's,
 * and a job that linkwise does not serve, or for which no agent answers in time, starts as without the plugin.
 *
 * The scheduler writes questions with calls that never block; one thread reads the answers and counts the time. `mu` guards the table of questions
 * and the output; no lock of the controller is taken under it. Memory: ASKS_MAX questions with a bitmap of nodes, OUT_B of output, LINE_MAX_B of input. */
#define _GNU_SOURCE
#include "config.h"
#include <poll.h>
#include "src/common/xstring.h"
#include "src/slurmctld/job_scheduler.h"
#include "src/slurmctld/locks.h"
#include "src/slurmctld/node_scheduler.h"
#include "src/slurmctld/slurmctld.h"
#include "agent.h"
#include SHIM
#include "gpus.h"
#include "no_buffer.h"

const char plugin_name[] = "linkwise: exact GPUs by measured bandwidth";
const char plugin_type[] = "burst_buffer/linkwise";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;
const char linkwise_built_for[] = "linkwise-built-for-slurm=" SLURM_VERSION_STRING;	/* `linkwise slurm check` looks for it */

enum { ASKS_MAX = 4096, ANSWER_KEPT_MS = 60000, PAUSE_MAX_MS = 300000, REGISTERING_MAX_MS = 30000, SOON_MAX_MS = 30000, SECOND_MS = 1000 };
typedef struct { enum { EMPTY, ASKED, ANSWERED } state; uint32_t job, seq; int64_t at_ms, soon_ms; uint64_t print; bitstr_t *allowed; char part[64], why[96]; } ask_t;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static ask_t asks[ASKS_MAX];
static uint32_t seq_last, failures;
static int64_t silence_ms, paused_until_ms, started_ms;
static unsigned long long n_asked, n_taken, n_refused, n_ordinary, n_rubbish, n_misplaced;
static pthread_t thread;
static volatile bool running, awaits_nodes;
static __thread bool starting, immediate;
static char path[sizeof(((struct sockaddr_un *) 0)->sun_path)];

/* Why linkwise does not serve the job, or NULL (docs/slurm.md lists the reasons). */
static const char *unserved(job_record_t *j, gres_job_state_t *g)
{
	job_details_t *d = j->details;
	return j->magic != JOB_MAGIC || !d || d->magic != DETAILS_MAGIC ? "built with headers of another Slurm" : !j->part_ptr || immediate ? "--immediate" : !g || list_count(j->gres_list_req) != 1 ? "another GRES than gpu" :
	       j->het_job_id ? "heterogeneous job" : j->fed_details ? "federated job" : j->license_list ? "licenses" : j->deadline ? "--deadline" :
	       j->time_min ? "--time-min" : (j->bit_flags & JOB_MAGNETIC) ? "magnetic reservation" :
	       d->features || d->prefer ? "--constraint or --prefer" : d->whole_node > 1 ? "--exclusive=user or mcs" : d->contiguous ? "--contiguous" :
	       d->expanding_jobid ? "expands a job" : g->gres_per_socket ? "--gpus-per-socket" : SHIM_ASKS_MORE(j) ? "--ntasks-per-gpu or --segment" :
	       j->comment && strstr(j->comment, "linkwise=off") ? "linkwise=off" : NULL;
}

/* Writes a question; returns the number of free GPUs in it, and a fingerprint of all but its number. O(GPUs of the nodes). */
static uint64_t question(job_record_t *j, gres_job_state_t *g, bitstr_t *nodes, uint32_t seq, uint64_t *print)
{
	job_details_t *d = j->details;
	uint64_t count = 0;
	char *comma = "", *named = j->comment ? strstr(j->comment, "linkwise=") : NULL, *policy = named ? named + 9 : "";
	char *qos = j->qos_ptr && j->qos_ptr->name ? j->qos_ptr->name : "";
	put("ask %u %u ", j->job_id, seq);
	size_t begin = out_b;
	put("part=%s gpus=%llu job=%llu node=%llu task=%llu tasks=%u tasks_per_node=%u nodes=%u-%u switches=%u set=%d exclusive=%d type=%s qos=%.*s policy=%.*s must=%s free=",
	    j->part_ptr->name, (unsigned long long) gpus_asked(j, g), (unsigned long long) g->gres_per_job, (unsigned long long) g->gres_per_node,
	    (unsigned long long) g->gres_per_task, d->num_tasks == NO_VAL ? 0 : d->num_tasks, d->ntasks_per_node == NO_VAL16 ? 0 : d->ntasks_per_node,
	    d->min_nodes, d->max_nodes, j->req_switch == NO_VAL ? 0 : j->req_switch, (j->bit_flags & JOB_NTASKS_SET) != 0, is_whole(j), g->type_name ? g->type_name : "",
	    plain(qos), qos, plain(policy), policy,
	    d->req_nodes ? d->req_nodes : "");
	for (int i = 0; i < node_record_count; i++) {
		gres_node_state_t *ns = bit_test(nodes, i) && node_record_table_ptr[i] ? gpus_in(node_record_table_ptr[i]->gres_list) : NULL;
		char sep = ':';
		for (int b = 0; ns && ns->gres_bit_alloc && !ns->no_consume && b < bit_size(ns->gres_bit_alloc); b++) {
			if (!is_free(ns, g, b))
				continue;
			if (sep == ':')
				put("%s%s", comma, node_record_table_ptr[i]->name), comma = ",";
			put("%c%d", sep, b);
			sep = '.', count++;
		}
	}
	put("\n");
	*print = 0xcbf29ce484222325;
	for (char *c = out + begin; c < out + out_b; c++)
		*print = (*print ^ (uint8_t) *c) * 0x100000001b3;
	return count;
}

static void comment(job_record_t *j, const char *text)
{
	if (j->admin_comment && xstrncmp(j->admin_comment, "{\"linkwise\"", 11))
		return;		/* an operator's own */
	xfree(j->admin_comment);
	j->admin_comment = xstrdup(text);
}

static int ordinary(job_record_t *j, const char *why)
{
	char text[160];
	snprintf(text, sizeof(text), "{\"linkwise\":\"slurm\",\"reason\":\"%s\"}", why);
	comment(j, text);
	return n_ordinary++, 1;
}

/* Slurm is about to choose nodes for this job, with its locks held. 1: go on. 0: not yet. */
extern int bb_p_job_test_stage_in(job_record_t *j, bool test_only)
{
	if (test_only || starting || !running || !j->gres_list_req || !list_count(j->gres_list_req))
		return 1;
	gres_job_state_t *g = gpus_in(j->gres_list_req);
	const char *why = unserved(j, g);
	uint64_t print;
	int64_t now = now_ms();
	int rc = 0;
	if (now - started_ms < REGISTERING_MAX_MS && j->magic == JOB_MAGIC && j->part_ptr && is_registering(j->part_ptr))
		return awaits_nodes = true, 0;
	if (why)
		return ordinary(j, why);
	bitstr_t *nodes = nodes_for(j);
	pthread_mutex_lock(&mu);
	ask_t *a = &asks[j->job_id % ASKS_MAX];
	bool mine = a->state && a->job == j->job_id, kept = a->state && now - a->at_ms < ANSWER_KEPT_MS;
	size_t before = out_b;
	int64_t soon_ms = a->job == j->job_id && now - a->soon_ms < ANSWER_KEPT_MS ? a->soon_ms : 0;
	if (conn < 0 || now < paused_until_ms || (soon_ms && now - soon_ms >= SOON_MAX_MS))
		rc = ordinary(j, mine && kept && a->why[0] ? a->why : conn < 0 ? "no agent" : now < paused_until_ms ? "agent was silent" : "other jobs got its GPUs for too long");
	else if (mine && a->state == ASKED)
		rc = now - a->at_ms < silence_ms ? 0 : ordinary(j, "no answer in time");
	else if ((kept && !mine) || out_b > OUT_B / 2)
		rc = ordinary(j, "too many questions");
	else if (question(j, g, nodes, seq_last + 1, &print) < gpus_asked(j, g) || out_b == OUT_B - 1)
		rc = 1, out_b = before;		/* Slurm itself says what is missing, and plans the start */
	else if (kept && a->print == print)
		rc = ordinary(j, a->why), out_b = before;
	else {
		FREE_NULL_BITMAP(a->allowed);
		*a = (ask_t) { ASKED, j->job_id, ++seq_last, now, soon_ms, print, nodes, "", "" };
		snprintf(a->part, sizeof(a->part), "%s", j->part_ptr->name);
		nodes = NULL, n_asked++;
		flush();
	}
	pthread_mutex_unlock(&mu);
	FREE_NULL_BITMAP(nodes);
	return rc;
}

/* The job's request is the user's again. */
static void restore(job_details_t *d, job_details_t *user)
{
	xfree(d->req_nodes);
	FREE_NULL_BITMAP(d->req_node_bitmap);
	d->req_nodes = xstrdup(user->req_nodes), d->req_node_bitmap = user->req_node_bitmap ? bit_copy(user->req_node_bitmap) : NULL;
	d->min_nodes = user->min_nodes, d->max_nodes = user->max_nodes, d->num_tasks = user->num_tasks;
}

/* Starts the job on these GPUs. Returns why not, or NULL. Needs the write locks of jobs and nodes. */
static const char *start_on(job_record_t *j, ask_t *a, char *text)
{
	static char name[NODE_NAME_MAX_B];
	static uint8_t gpus[GPUS_PER_NODE_MAX];
	static pick_t p[NODES_MAX];
	gres_job_state_t *g = gpus_in(j->gres_list_req);
	part_record_t *part = find_part_record(a->part), *before = j->part_ptr;
	bitstr_t *nodes = bit_alloc(node_record_count);
	job_details_t *d = j->details, user = *d;
	uint64_t total = 0;
	int n = 0, k, found, rc;
	const char *why = !part || bit_size(a->allowed) != node_record_count || unserved(j, g) ? "the request or the cluster changed" : NULL;
	while (!why && (found = next_pick(&text, name, gpus))) {
		node_record_t *node = found > 0 && n < NODES_MAX ? find_node_record(name) : NULL;
		gres_node_state_t *ns = node ? gpus_in(node->gres_list) : NULL;
		if (!ns || !ns->gres_bit_alloc || bit_test(nodes, node->index) || !bit_test(a->allowed, node->index)) {
			why = "no such node, or it is not allowed";
			break;
		}
		pick_t *at = &p[n++];
		*at = (pick_t) { ns, bit_copy(ns->gres_bit_alloc), node->index, found };
		bit_not(at->hide);
		for (int b = 0; b < GPUS_PER_NODE_MAX; b++)
			if (gpus[b] && (b >= bit_size(at->hide) || !is_free(ns, g, b)))
				why = "a GPU is not free";
			else if (gpus[b])
				bit_clear(at->hide, b);
		if (is_whole(j) && bit_set_count(at->hide))
			why = "the job gets whole nodes";
		bit_set(nodes, node->index), total += found;
	}
	why = why ? why : (is_whole(j) ? total < gpus_asked(j, g) : total != gpus_asked(j, g)) ? "another number of GPUs was asked for" :
	      n < d->min_nodes || (d->max_nodes && n > d->max_nodes) || (d->num_tasks < n && (j->bit_flags & JOB_NTASKS_SET)) ?
	      "another number of nodes was asked for" :
	      d->req_node_bitmap && !bit_super_set(d->req_node_bitmap, nodes) ? "a required node is missing" : NULL;
	if (!why) {
		d->req_nodes = bitmap2node_name(nodes), d->req_node_bitmap = bit_copy(nodes);
		d->min_nodes = d->max_nodes = n, d->num_tasks = MAX(d->num_tasks, n), j->part_ptr = part;
		for (starting = true, k = 0; k < n; k++)
			mark(&p[k], 1);
		if ((rc = SHIM_SELECT(j, true)) || (rc = SHIM_SELECT(j, false)))
			why = slurm_strerror(rc);
		for (starting = false, k = 0; k < n; k++)
			mark(&p[k], -1);
		job_record_t *rest = j->array_task_id != NO_VAL ? find_job_record(j->array_job_id) : NULL;
		if (rest && rest != j && rest->array_recs && rest->details)	/* the tasks still pending got copies of the changed fields */
			restore(rest->details, &user);
		restore(d, &user);
		xfree(user.req_nodes);
		FREE_NULL_BITMAP(user.req_node_bitmap);
		last_job_update = time(NULL);
		if (why)
			j->part_ptr = before;
	}
	for (k = 0; k < n; k++) {
		if (!why && !holds(j, &p[k]))
			n_misplaced++, error("linkwise: %pJ did not get the chosen GPUs of node %d", j, p[k].node);
		FREE_NULL_BITMAP(p[k].hide);
	}
	FREE_NULL_BITMAP(nodes);
	if (why)
		return why;
	d->num_tasks = MAX(d->num_tasks, n);
	rebuild_job_part_list(j);
	if (!j->batch_flag)
		srun_allocate(j);
	else if (!IS_JOB_CONFIGURING(j))
		launch_job(j);
	return NULL;
}

/* Ends the questions that are too old, or all with the connection: Slurm places these jobs. The thread calls it without locks. */
static void give_up(const char *why, bool hang_up)
{
	int64_t now = now_ms();
	bool any = false;
	pthread_mutex_lock(&mu);
	if (hang_up)
		close(conn), conn = -1, in_b = out_b = 0;
	for (ask_t *a = asks; a < asks + ASKS_MAX; a++)
		if (a->state == ASKED && (hang_up || now - a->at_ms >= silence_ms))
			a->state = ANSWERED, any = true, snprintf(a->why, sizeof(a->why), "%s", why);
	if (any)	/* the next jobs do not wait for this agent, longer after every failure */
		paused_until_ms = now + MIN(silence_ms << MIN(failures, 6), PAUSE_MAX_MS), failures++;
	pthread_mutex_unlock(&mu);
	if (any) {
		info("linkwise: %s; waiting jobs go the ordinary way", why);
		queue_job_scheduler();
	}
}

/* Does what one line says; false for rubbish. The write lock of jobs keeps the scheduler from the table and the output. */
static bool obey(char *line)
{
	slurmctld_lock_t lk = { .conf = READ_LOCK, .job = WRITE_LOCK, .node = WRITE_LOCK, .part = READ_LOCK, .fed = READ_LOCK, SHIM_LOCKS_MORE };
	struct message m = message_of(line);
	ask_t *a = &asks[m.job % ASKS_MAX];
	const char *why = "no such question";
	if (m.verb == RUBBISH || m.verb == BEAT)
		return n_rubbish += m.verb == RUBBISH, m.verb == BEAT;
	lock_slurmctld(lk);
	if (a->state == ASKED && a->job == m.job && a->seq == m.seq) {
		job_record_t *j = find_job_record(m.job);
		bool pending = j && IS_JOB_PENDING(j) && !IS_JOB_COMPLETING(j) && j->priority;
		failures = 0;
		if ((why = m.verb != TAKE ? m.note : pending ? start_on(j, a, m.picks) : "the job is not pending"))
			queue_job_scheduler();
		else
			comment(j, m.note);
		FREE_NULL_BITMAP(a->allowed);
		a->state = why && m.verb != SOON ? ANSWERED : EMPTY, a->soon_ms = m.verb != SOON ? 0 : a->soon_ms ? a->soon_ms : now_ms();
		snprintf(a->why, sizeof(a->why), "%s", why ? why : "");
	}
	if (m.verb == TAKE)
		n_taken += !why, n_refused += !!why, put(why ? "refused %u %u %s\n" : "took %u %u\n", m.job, m.seq, why);
	unlock_slurmctld(lk);
	return true;
}

static void *serve(void *x)
{
	for (int64_t tried_ms = 0; running;) {
		if (awaits_nodes && now_ms() - tried_ms > SECOND_MS)
			awaits_nodes = false, tried_ms = now_ms(), queue_job_scheduler();
		pthread_mutex_lock(&mu);
		bool more = flush();
		pthread_mutex_unlock(&mu);
		struct pollfd fds[] = { { listener, POLLIN, 0 }, { conn, POLLIN | (more ? POLLOUT : 0), 0 } };
		poll(fds, conn < 0 ? 1 : 2, 100);
		int fd = fds[0].revents ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
		if (conn >= 0 && (fd >= 0 || ((fds[1].revents & ~POLLOUT) && !receive(obey))))
			give_up(fd >= 0 ? "another agent connected" : "the agent is gone or sent rubbish", true);
		pthread_mutex_lock(&mu);
		if (fd >= 0)	/* the newest agent is the one that is asked */
			conn = fd, paused_until_ms = 0, put("hello 2 %s %lld\n", SLURM_VERSION_STRING, (long long) silence_ms);
		pthread_mutex_unlock(&mu);
		give_up("no answer in time", false);
	}
	return NULL;
}

/* Never fails: without its socket the plugin does nothing, and the controller starts. */
extern int init(void)
{
	char seconds[16] = "5";
	snprintf(path, sizeof(path), "%s/linkwise.sock", slurm_conf.state_save_location);
	option(slurm_conf.slurmctld_params, "linkwise_socket=", path, sizeof(path));
	option(slurm_conf.slurmctld_params, "linkwise_silence=", seconds, sizeof(seconds));
	silence_ms = 1000 * MAX(1, MIN(atoi(seconds), 60));
	started_ms = now_ms(), running = listen_at(path);
	if (!running || pthread_create(&thread, NULL, serve, NULL))
		running = false, error("linkwise: no socket at %s: %m; jobs go the ordinary way", path);
	else
		info("linkwise: listening at %s, built for Slurm %s", path, SLURM_VERSION_STRING);
	return SLURM_SUCCESS;
}

extern SHIM_FINI fini(void)
{
	if (running) {
		running = false;
		pthread_join(thread, NULL);
		unlink(path);
		close(listener), close(conn);
	}
	SHIM_FINI_RETURN;
}

/* `scontrol show bbstat` */
extern char *bb_p_get_status(SHIM_STATUS_ARGS)
{
	return xstrdup_printf("linkwise slurm=%s agent=%s asked=%llu taken=%llu refused=%llu ordinary=%llu rubbish=%llu misplaced=%llu\n", SLURM_VERSION_STRING,
			      conn < 0 ? "none" : "connected", n_asked, n_taken, n_refused, n_ordinary, n_rubbish, n_misplaced);
}

/* A job submitted with --immediate cannot wait for an answer. The same thread asks for its nodes next. */
extern int bb_p_job_validate(job_desc_msg_t *job, uid_t uid, char **error)
{
	immediate = job->immediate;
	return SLURM_SUCCESS;
}
