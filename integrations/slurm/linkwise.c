/* SPDX-License-Identifier: GPL-2.0-or-later */
/* burst_buffer/linkwise: exact GPUs for jobs at the moment at which Slurm would start them.
 *
 * Slurm asks a burst buffer plugin before it chooses nodes for a job that it starts now. This plugin answers "not yet" once, asks an agent over a
 * Unix socket for the GPUs, and starts the job on exactly these: under the controller's locks it marks every other free GPU of the chosen nodes as
 * taken, calls Slurm's select_nodes(), and removes the marks. No field of a waiting job is changed: priority, age, order and backfill stay Slurm's,
 * and a job that linkwise does not serve, or for which no agent answers in time, starts as without the plugin.
 *
 * One thread does all I/O, on non-blocking sockets. `mu` guards the table of questions; it is held for memory work only, and no lock of the
 * controller is taken under it. Memory: ASKS_MAX questions with a bitmap of nodes, OUT_B bytes of output, LINE_MAX_B of input. */
#define _GNU_SOURCE
#include "config.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include "slurm/slurm.h"
#include "slurm/slurm_errno.h"
#include "src/common/bitstring.h"
#include "src/common/log.h"
#include "src/common/node_conf.h"
#include "src/common/read_config.h"
#include "src/common/xmalloc.h"
#include "src/common/xstring.h"
#include "src/slurmctld/job_scheduler.h"
#include "src/slurmctld/locks.h"
#include "src/slurmctld/node_scheduler.h"
#include "src/slurmctld/slurmctld.h"
#include "message.h"
#include SHIM

const char plugin_name[] = "linkwise: exact GPUs by measured bandwidth";
const char plugin_type[] = "burst_buffer/linkwise";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;
const char linkwise_built_for[] = "linkwise-built-for-slurm=" SLURM_VERSION_STRING;	/* `linkwise slurm check` looks for it */

enum { ASKS_MAX = 1024, OUT_B = 1 << 22, ANSWER_KEPT_MS = 60000, PAUSE_MAX_MS = 300000 };
enum state { EMPTY, QUEUED, SENT, ANSWERED };
typedef struct { enum state state; uint32_t job, seq; int64_t at_ms; uint64_t print; bitstr_t *allowed; char *part, why[96]; } ask_t;
typedef struct { gres_node_state_t *ns; bitstr_t *want, *hide; int node; } pick_t;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static ask_t asks[ASKS_MAX];
static uint32_t seq_last, failures;
static int64_t silence_ms = 5000, paused_until_ms;
static uint64_t n_asked, n_taken, n_refused, n_ordinary, n_rubbish, n_misplaced;
static volatile int conn = -1, stopping;
static int listener = -1, wake = -1;
static pthread_t thread;
static bool running;
static __thread bool starting, immediate;
static char path[sizeof(((struct sockaddr_un *) 0)->sun_path)], in[LINE_MAX_B + 1], out[OUT_B];
static size_t in_b, out_b;

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

static int is_gpu(void *x, void *key) { return !xstrcmp(((gres_state_t *) x)->gres_name, "gpu"); }
static void *gpus_in(SHIM_LIST list)
{
	gres_state_t *g = list ? list_find_first(list, is_gpu, NULL) : NULL;
	return g ? g->gres_data : NULL;
}

/* The job's request for GPUs, or NULL if linkwise does not serve such jobs (docs/slurm.md lists them). */
static gres_job_state_t *request_of(job_record_t *j)
{
	gres_job_state_t *g;
	if (!j->details || !j->part_ptr || !j->gres_list_req || list_count(j->gres_list_req) != 1 || !(g = gpus_in(j->gres_list_req)) ||
	    j->het_job_id || j->fed_details || j->license_list || j->deadline || j->time_min || j->req_switch || (j->bit_flags & JOB_MAGNETIC) ||
	    j->details->features || j->details->prefer || j->details->whole_node || j->details->contiguous || j->details->expanding_jobid ||
	    g->gres_per_socket || SHIM_ASKS_MORE(j) || (j->comment && strstr(j->comment, "linkwise=off")))
		return NULL;
	return g;
}

static uint64_t gpus_asked(job_record_t *j, gres_job_state_t *g)
{
	uint64_t node = g->gres_per_node * MAX(j->details->min_nodes, 1), tasks = j->details->num_tasks;
	return MAX(MAX(g->gres_per_job, node), g->gres_per_task * (tasks == NO_VAL ? 1 : MAX(tasks, 1)));
}

static bool is_free(gres_node_state_t *ns, gres_job_state_t *g, int b)
{
	if (bit_test(ns->gres_bit_alloc, b))
		return false;
	for (int t = 0; g->type_name && t < ns->topo_cnt; t++)
		if (ns->topo_gres_bitmap[t] && bit_test(ns->topo_gres_bitmap[t], b))
			return ns->topo_type_id[t] == g->type_id;
	return !g->type_name;
}

__attribute__((format(printf, 1, 2))) static void put(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vsnprintf(out + out_b, OUT_B - out_b, format, args);
	va_end(args);
	out_b = n < 0 || (size_t) n >= OUT_B - out_b ? OUT_B - 1 : out_b + (size_t) n;	/* full: flush() closes the connection */
}

/* Counts the free GPUs of the nodes and returns a fingerprint of them; writes them to the agent if `tell`. O(GPUs of the nodes). */
static uint64_t look(bitstr_t *nodes, gres_job_state_t *g, uint64_t *count, bool tell)
{
	uint64_t print = 0xcbf29ce484222325;
	char *comma = "";
	*count = 0;
	for (int i = 0; i < node_record_count; i++) {
		gres_node_state_t *ns = bit_test(nodes, i) && node_record_table_ptr[i] ? gpus_in(node_record_table_ptr[i]->gres_list) : NULL;
		char sep = ':';
		for (int b = 0; ns && ns->gres_bit_alloc && !ns->no_consume && b < bit_size(ns->gres_bit_alloc); b++) {
			if (!is_free(ns, g, b))
				continue;
			(*count)++;
			print = (print ^ (i * 4096ULL + b)) * 0x100000001b3;
			if (tell && sep == ':')
				put("%s%s", comma, node_record_table_ptr[i]->name), comma = ",";
			if (tell)
				put("%c%d", sep, b), sep = '.';
		}
	}
	return print;
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
	n_ordinary++;
	return 1;
}

static void drop(ask_t *a)
{
	FREE_NULL_BITMAP(a->allowed);
	xfree(a->part);
	a->state = EMPTY;
}

/* The job's question, else a place for one, else NULL. */
static ask_t *find(uint32_t job)
{
	ask_t *place = NULL;
	for (ask_t *a = asks; a < asks + ASKS_MAX; a++) {
		if (a->state && a->job == job)
			return a;
		if (!a->state || (!place && a->state == ANSWERED))
			place = a;
	}
	return place;
}

/* Slurm is about to choose nodes for this job, with its locks held. 1: go on. 0: not yet. */
extern int bb_p_job_test_stage_in(job_record_t *j, bool test_only)
{
	gres_job_state_t *g;
	uint64_t count, print;
	int64_t now = now_ms();
	int rc = 1;
	if (test_only || starting || immediate || !running || !(g = request_of(j)))
		return 1;
	bitstr_t *nodes = bit_copy(j->part_ptr->node_bitmap);
	bit_and(nodes, avail_node_bitmap);
	bit_and(nodes, share_node_bitmap);
	if (j->details->exc_node_bitmap)	/* the user's, and the nodes that backfill keeps for other jobs */
		bit_and_not(nodes, j->details->exc_node_bitmap);
	if (j->resv_ptr && j->resv_ptr->node_bitmap)
		bit_and(nodes, j->resv_ptr->node_bitmap);
	print = look(nodes, g, &count, false);
	pthread_mutex_lock(&mu);
	ask_t *a = find(j->job_id);
	if (count < gpus_asked(j, g))
		;	/* Slurm itself says what is missing, and plans the start */
	else if (a && a->job == j->job_id && (a->state == ANSWERED ? a->print == print && !xstrcmp(a->part, j->part_ptr->name) :
								   a->state && now - a->at_ms >= silence_ms))
		rc = ordinary(j, a->why);
	else if (conn < 0 || now < paused_until_ms)
		rc = ordinary(j, conn < 0 ? "no agent" : "agent was silent");
	else if (!a)
		rc = ordinary(j, "too many questions");
	else if (a->state == QUEUED || a->state == SENT)
		rc = 0;
	else {
		drop(a);
		*a = (ask_t) { .state = QUEUED, .job = j->job_id, .seq = ++seq_last, .at_ms = now, .print = print, .part = xstrdup(j->part_ptr->name), .allowed = nodes,
			       .why = "no answer in time" };
		nodes = NULL;
		n_asked++;
		rc = 0;
		eventfd_write(wake, 1);
	}
	pthread_mutex_unlock(&mu);
	FREE_NULL_BITMAP(nodes);
	return rc;
}

static void mark(pick_t *p, int sign)
{
	for (int b = 0; b < bit_size(p->hide); b++) {
		if (!bit_test(p->hide, b))
			continue;
		sign > 0 ? bit_set(p->ns->gres_bit_alloc, b) : bit_clear(p->ns->gres_bit_alloc, b);
		p->ns->gres_cnt_alloc += sign;
		for (int t = 0; t < p->ns->topo_cnt; t++) {
			if (!p->ns->topo_gres_bitmap[t] || !bit_test(p->ns->topo_gres_bitmap[t], b))
				continue;
			p->ns->topo_gres_cnt_alloc[t] += sign;
			for (int d = 0; d < p->ns->type_cnt; d++)
				if (p->ns->type_id[d] == p->ns->topo_type_id[t])
					p->ns->type_cnt_alloc[d] += sign;
		}
	}
}

/* Starts the job on these GPUs. Returns why not, or NULL. Needs the write locks of jobs and nodes. */
static const char *start_on(job_record_t *j, ask_t *a, char *text)
{
	static char name[NODE_NAME_MAX_B];
	static uint8_t gpus[GPUS_PER_NODE_MAX];
	job_details_t *d = j->details;
	gres_job_state_t *g = request_of(j), *got;
	pick_t p[NODES_MAX];
	uint64_t total = 0;
	const char *why = NULL;
	int n = 0, found, rc, k;
	bitstr_t *nodes = bit_alloc(node_record_count);
	part_record_t *part = find_part_record(a->part), *before = j->part_ptr;
	if (!g || !part || bit_size(a->allowed) != node_record_count)
		why = "the request or the cluster changed";
	while (!why && (found = next_pick(&text, name, gpus))) {
		node_record_t *node = found > 0 && n < NODES_MAX ? find_node_record(name) : NULL;
		gres_node_state_t *ns = node ? gpus_in(node->gres_list) : NULL;
		if (!ns || !ns->gres_bit_alloc || bit_test(nodes, node->index))
			why = "no such node or index";
		else if (!bit_test(a->allowed, node->index) || !bit_test(avail_node_bitmap, node->index))
			why = "a node is not allowed";
		for (int b = 0; !why && b < GPUS_PER_NODE_MAX; b++)
			if (gpus[b] && (b >= bit_size(ns->gres_bit_alloc) || !is_free(ns, g, b)))
				why = "a GPU is not free";
		if (why)
			break;
		p[n] = (pick_t) { .ns = ns, .node = node->index, .want = bit_alloc(bit_size(ns->gres_bit_alloc)), .hide = bit_copy(ns->gres_bit_alloc) };
		bit_not(p[n].hide);
		for (int b = 0; b < bit_size(p[n].want); b++)
			if (gpus[b])
				bit_set(p[n].want, b), bit_clear(p[n].hide, b);
		bit_set(nodes, node->index);
		total += found, n++;
	}
	if (!why && total != gpus_asked(j, g))
		why = "another number of GPUs was asked for";
	else if (!why && (n < d->min_nodes || (d->max_nodes && n > d->max_nodes) || (d->num_tasks < n && (j->bit_flags & JOB_NTASKS_SET))))
		why = "another number of nodes was asked for";
	else if (!why && d->req_node_bitmap && !bit_super_set(d->req_node_bitmap, nodes))
		why = "a required node is missing";
	if (!why) {
		job_details_t user = *d;
		d->req_nodes = bitmap2node_name(nodes);
		d->req_node_bitmap = bit_copy(nodes);
		d->min_nodes = d->max_nodes = n;
		d->num_tasks = MAX(d->num_tasks, n);
		j->part_ptr = part;
		starting = true;
		for (k = 0; k < n; k++)
			mark(&p[k], 1);
		if (!(rc = SHIM_SELECT(j, true)))
			rc = SHIM_SELECT(j, false);
		for (k = 0; k < n; k++)
			mark(&p[k], -1);
		starting = false;
		job_record_t *rest = j->array_task_id != NO_VAL ? find_job_record(j->array_job_id) : NULL;
		if (rest && rest != j && rest->array_recs && rest->details) {	/* the tasks still pending got copies of the changed fields */
			xfree(rest->details->req_nodes);
			FREE_NULL_BITMAP(rest->details->req_node_bitmap);
			rest->details->req_nodes = xstrdup(user.req_nodes);
			rest->details->req_node_bitmap = user.req_node_bitmap ? bit_copy(user.req_node_bitmap) : NULL;
			rest->details->min_nodes = user.min_nodes, rest->details->max_nodes = user.max_nodes, rest->details->num_tasks = user.num_tasks;
		}
		xfree(d->req_nodes);
		FREE_NULL_BITMAP(d->req_node_bitmap);
		d->req_nodes = user.req_nodes, d->req_node_bitmap = user.req_node_bitmap;
		d->min_nodes = user.min_nodes, d->max_nodes = user.max_nodes;
		last_job_update = time(NULL);
		if (rc) {
			d->num_tasks = user.num_tasks, j->part_ptr = before;
			why = slurm_strerror(rc);
		} else {
			got = gpus_in(j->gres_list_alloc);
			for (k = 0; k < n; k++) {
				int at = p[k].node ? bit_set_count_range(j->node_bitmap, 0, p[k].node) : 0;
				if (got && at < got->node_cnt && got->gres_bit_alloc && got->gres_bit_alloc[at] &&
				    bit_equal(got->gres_bit_alloc[at], p[k].want))
					continue;
				n_misplaced++;
				error("linkwise: %pJ did not get the chosen GPUs of node %d", j, p[k].node);
			}
			rebuild_job_part_list(j);
			if (!j->batch_flag)
				srun_allocate(j);
			else if (!IS_JOB_CONFIGURING(j))
				launch_job(j);
		}
	}
	for (k = 0; k < n; k++) {
		FREE_NULL_BITMAP(p[k].want);
		FREE_NULL_BITMAP(p[k].hide);
	}
	FREE_NULL_BITMAP(nodes);
	return why;
}

/* Ends all open questions: Slurm places these jobs. The thread calls it without locks. */
static void give_up(const char *why, int64_t older_than_ms)
{
	int64_t now = now_ms();
	bool any = false;
	pthread_mutex_lock(&mu);
	for (ask_t *a = asks; a < asks + ASKS_MAX; a++)
		if (a->state == ANSWERED && now - a->at_ms > ANSWER_KEPT_MS)
			drop(a);
		else if ((a->state == QUEUED || a->state == SENT) && now - a->at_ms >= older_than_ms)
			a->state = ANSWERED, any = true, snprintf(a->why, sizeof(a->why), "%s", why);
	if (any)	/* the next jobs do not wait for this agent, longer after every failure */
		paused_until_ms = now + MIN(silence_ms << MIN(failures, 6), PAUSE_MAX_MS), failures++;
	pthread_mutex_unlock(&mu);
	if (any) {
		info("linkwise: %s; waiting jobs go the ordinary way", why);
		queue_job_scheduler();
	}
}

static void hang_up(const char *why)
{
	pthread_mutex_lock(&mu);
	close(conn);
	conn = -1, in_b = out_b = 0;
	pthread_mutex_unlock(&mu);
	give_up(why, 0);
}

static void welcome(void)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || (peer.uid && peer.uid != geteuid() && peer.uid != slurm_conf.slurm_user_id)) {
		info("linkwise: refused a connection of another user");
		close(fd);
		return;
	}
	if (conn >= 0)
		hang_up("another agent connected");
	pthread_mutex_lock(&mu);
	conn = fd, paused_until_ms = 0;
	pthread_mutex_unlock(&mu);
	put("hello 1 %s %lld\n", SLURM_VERSION_STRING, (long long) silence_ms);
}

static void send_questions(void)
{
	slurmctld_lock_t lk = { .conf = READ_LOCK, .job = READ_LOCK, .node = READ_LOCK, .part = READ_LOCK, SHIM_LOCKS_MORE };
	uint64_t count;
	bool any = false;
	pthread_mutex_lock(&mu);
	for (ask_t *a = asks; a < asks + ASKS_MAX; a++)
		any |= a->state == QUEUED;
	pthread_mutex_unlock(&mu);
	if (!any || out_b > OUT_B / 2)
		return;
	lock_slurmctld(lk);
	pthread_mutex_lock(&mu);
	for (ask_t *a = asks; a < asks + ASKS_MAX && out_b < OUT_B / 2; a++) {
		if (a->state != QUEUED)
			continue;
		job_record_t *j = find_job_record(a->job);
		gres_job_state_t *g = j && IS_JOB_PENDING(j) ? request_of(j) : NULL;
		if (!g || bit_size(a->allowed) != node_record_count) {
			drop(a);
			continue;
		}
		job_details_t *d = j->details;
		put("ask %u %u part=%s gpus=%llu job=%llu node=%llu task=%llu tasks=%u tasks_per_node=%u nodes=%u-%u set=%d must=%s free=", a->job, a->seq, a->part,
		    (unsigned long long) gpus_asked(j, g), (unsigned long long) g->gres_per_job, (unsigned long long) g->gres_per_node,
		    (unsigned long long) g->gres_per_task, d->num_tasks == NO_VAL ? 0 : d->num_tasks, d->ntasks_per_node == NO_VAL16 ? 0 : d->ntasks_per_node,
		    d->min_nodes, d->max_nodes, (j->bit_flags & JOB_NTASKS_SET) != 0, d->req_nodes ? d->req_nodes : "");
		look(a->allowed, g, &count, true);
		put("\n");
		a->state = SENT;
	}
	pthread_mutex_unlock(&mu);
	unlock_slurmctld(lk);
}

/* Does what one line says; false for rubbish. */
static bool obey(char *line)
{
	slurmctld_lock_t lk = { .conf = READ_LOCK, .job = WRITE_LOCK, .node = WRITE_LOCK, .part = READ_LOCK, .fed = READ_LOCK, SHIM_LOCKS_MORE };
	struct message m = message_of(line);
	const char *why = m.verb == TAKE ? "the job is not pending" : m.note;
	if (m.verb == RUBBISH || m.verb == BEAT)
		return m.verb == BEAT;
	lock_slurmctld(lk);
	pthread_mutex_lock(&mu);
	ask_t *a = find(m.job), mine;
	bool known = a && a->state == SENT && a->seq == m.seq;
	job_record_t *j = known ? find_job_record(m.job) : NULL;
	if (known) {
		failures = 0;
		mine = *a;
		a->allowed = NULL, a->state = ANSWERED;
		mine.part = xstrdup(a->part);
	}
	pthread_mutex_unlock(&mu);
	if (j && IS_JOB_PENDING(j) && !IS_JOB_COMPLETING(j) && j->priority && m.verb == TAKE && !(why = start_on(j, &mine, m.picks)))
		comment(j, m.note);
	if (known) {
		pthread_mutex_lock(&mu);
		snprintf(a->why, sizeof(a->why), "%s", why ? why : "");
		for (char *c = a->why; *c; c++)
			if (*c == '"' || *c == '\\')
				*c = ' ';
		if (!why)
			drop(a);
		pthread_mutex_unlock(&mu);
		FREE_NULL_BITMAP(mine.allowed);
		xfree(mine.part);
	}
	unlock_slurmctld(lk);
	n_taken += m.verb == TAKE && known && !why, n_refused += m.verb == TAKE && known && why;
	if (m.verb == TAKE)
		put(why || !known ? "refused %u %u %s\n" : "took %u %u\n", m.job, m.seq, known ? why : "no such question");
	if (known && why)
		queue_job_scheduler();
	return true;
}

static bool receive(void)
{
	ssize_t n = read(conn, in + in_b, LINE_MAX_B - in_b);
	char *start = in, *end;
	if (n <= 0)
		return n < 0 && (errno == EAGAIN || errno == EINTR);
	for (in_b += n; (end = memchr(start, '\n', in + in_b - start)); start = end + 1) {
		*end = 0;
		if (strlen(start) != (size_t) (end - start) || !obey(start))
			return n_rubbish++, false;
	}
	in_b -= start - in;
	memmove(in, start, in_b);
	return in_b < LINE_MAX_B;
}

static bool flush(void)
{
	ssize_t n = out_b ? write(conn, out, out_b) : 0;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR;
	memmove(out, out + n, out_b -= n);
	return out_b < OUT_B - 1;
}

static void *serve(void *x)
{
	eventfd_t ignored;
	while (!stopping) {
		struct pollfd fds[] = { { wake, POLLIN, 0 }, { listener, POLLIN, 0 }, { conn, POLLIN | (out_b ? POLLOUT : 0), 0 } };
		poll(fds, conn < 0 ? 2 : 3, 100);
		if (fds[0].revents)
			eventfd_read(wake, &ignored);
		if (fds[1].revents)
			welcome();
		else if (conn >= 0 && fds[2].revents && !receive())
			hang_up("the agent is gone or sent rubbish");
		if (conn >= 0)
			send_questions();
		if (conn >= 0 && !flush())
			hang_up("the agent does not read");
		give_up("no answer in time", silence_ms);
	}
	return NULL;
}

static void option(const char *name, char *value, size_t size)
{
	char *at = slurm_conf.slurmctld_params ? strstr(slurm_conf.slurmctld_params, name) : NULL;
	if (at)
		snprintf(value, size, "%.*s", (int) strcspn(at + strlen(name), ","), at + strlen(name));
}

/* Never fails: without its socket the plugin does nothing, and the controller starts. */
extern int init(void)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct stat old;
	char seconds[16] = "5";
	snprintf(path, sizeof(path), "%s/linkwise.sock", slurm_conf.state_save_location);
	option("linkwise_socket=", path, sizeof(path));
	option("linkwise_silence=", seconds, sizeof(seconds));
	silence_ms = 1000 * MAX(1, MIN(atoi(seconds), 60));
	memcpy(addr.sun_path, path, sizeof(path));
	if (!lstat(path, &old) && S_ISSOCK(old.st_mode))
		unlink(path);
	stopping = 0;
	wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (wake < 0 || listener < 0 || fchmod(listener, 0600) || bind(listener, (void *) &addr, sizeof(addr)) || chmod(path, 0600) || listen(listener, 4) ||
	    pthread_create(&thread, NULL, serve, NULL)) {
		error("linkwise: no socket at %s: %m; jobs go the ordinary way", path);
		close(listener), close(wake);
		return SLURM_SUCCESS;
	}
	running = true;
	info("linkwise: listening at %s, built for Slurm %s", path, SLURM_VERSION_STRING);
	return SLURM_SUCCESS;
}

extern SHIM_FINI fini(void)
{
	if (running) {
		running = false, stopping = 1;
		eventfd_write(wake, 1);
		pthread_join(thread, NULL);
		unlink(path);
		close(listener), close(wake), close(conn);
	}
	SHIM_FINI_RETURN;
}

/* `scontrol show bbstat` */
extern char *bb_p_get_status(SHIM_STATUS_ARGS)
{
	return xstrdup_printf("linkwise slurm=%s agent=%s asked=%llu taken=%llu refused=%llu ordinary=%llu rubbish=%llu misplaced=%llu\n", SLURM_VERSION_STRING,
			      conn < 0 ? "none" : "connected", (unsigned long long) n_asked, (unsigned long long) n_taken, (unsigned long long) n_refused,
			      (unsigned long long) n_ordinary, (unsigned long long) n_rubbish, (unsigned long long) n_misplaced);
}

/* A job submitted with --immediate cannot wait for an answer. The same thread asks for its nodes next. */
extern int bb_p_job_validate(job_desc_msg_t *job, uid_t uid, char **error)
{
	immediate = job->immediate;
	return SLURM_SUCCESS;
}

/* The rest of a burst buffer plugin: there is no buffer. */
extern char *bb_p_build_het_job_script(char *script, uint32_t offset) { return NULL; }
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
