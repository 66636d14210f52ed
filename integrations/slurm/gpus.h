/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Slurm's books of the GPUs of a node: what is free, and marks that keep GPUs from a job. All of it needs the controller's lock of nodes. */
#ifndef LINKWISE_GPUS_H
#define LINKWISE_GPUS_H

static int is_gpu(void *x, void *key) { return !xstrcmp(((gres_state_t *) x)->gres_name, "gpu"); }
static void *gpus_in(SHIM_LIST list)
{
	gres_state_t *g = list ? list_find_first(list, is_gpu, NULL) : NULL;
	return g ? g->gres_data : NULL;
}

/* True if a node of the partition has not yet told a new controller its GPUs. Slurm forgets the GPUs of a job that it starts on such a node: no
 * device in the job, and GPUs that stay taken after its end. O(nodes). */
static bool is_registering(part_record_t *part)
{
	for (int i = 0; i < node_record_count; i++) {
		node_record_t *node = bit_test(part->node_bitmap, i) && bit_test(avail_node_bitmap, i) ? node_record_table_ptr[i] : NULL;
		gres_node_state_t *ns = node && !IS_NODE_POWERED_DOWN(node) && !IS_NODE_POWERING_UP(node) ? gpus_in(node->gres_list) : NULL;
		if (ns && ns->gres_cnt_config && ns->gres_cnt_found == NO_VAL64)
			return true;
	}
	return false;
}

/* The number of GPUs that the job gets at least. */
static uint64_t gpus_asked(job_record_t *j, gres_job_state_t *g)
{
	uint64_t node = g->gres_per_node * MAX(j->details->min_nodes, 1), tasks = j->details->num_tasks;
	return MAX(MAX(g->gres_per_job, node), g->gres_per_task * (tasks == NO_VAL ? 1 : MAX(tasks, 1)));
}

/* True if the job gets its nodes whole, and with them all of their GPUs. */
static bool is_whole(job_record_t *j) { return j->details->whole_node || !j->part_ptr->max_share; }

/* The nodes on which Slurm would start the job now. It uses no node on which a job is still ending, although the GPUs of that job are free. */
static bitstr_t *nodes_for(job_record_t *j)
{
	bitstr_t *nodes = bit_copy(j->part_ptr->node_bitmap);
	bit_and(nodes, avail_node_bitmap);
	bit_and(nodes, is_whole(j) ? idle_node_bitmap : share_node_bitmap);
	bit_and_not(nodes, cg_node_bitmap);
	bit_and_not(nodes, rs_node_bitmap);
	if (j->details->exc_node_bitmap)	/* the user's, and the nodes that backfill keeps for other jobs */
		bit_and_not(nodes, j->details->exc_node_bitmap);
	if (j->resv_ptr && j->resv_ptr->node_bitmap)
		bit_and(nodes, j->resv_ptr->node_bitmap);
	return nodes;
}

/* True if the GPU is free and of the type that the request names. */
static bool is_free(gres_node_state_t *ns, gres_job_state_t *g, int b)
{
	if (bit_test(ns->gres_bit_alloc, b))
		return false;
	for (int t = 0; g->type_name && t < ns->topo_cnt; t++)
		if (ns->topo_gres_bitmap[t] && bit_test(ns->topo_gres_bitmap[t], b))
			return ns->topo_type_id[t] == g->type_id;
	return !g->type_name;
}

/* A node of an order, its free GPUs that the order does not name, and the number of those that it names. */
typedef struct { gres_node_state_t *ns; bitstr_t *hide; int node, gpus; } pick_t;

/* Adds the GPUs of one record of a job's to `held`, those of the pick and no others. */
struct held { pick_t *p; int at, gpus; };
static int add_held(void *x, void *held)
{
	struct held *h = held;
	gres_job_state_t *g = ((gres_state_t *) x)->gres_data;
	bitstr_t *has = is_gpu(x, NULL) && g->gres_bit_alloc && h->at < g->node_cnt ? g->gres_bit_alloc[h->at] : NULL;
	if (has && bit_size(has) == bit_size(h->p->hide) && !bit_overlap_any(has, h->p->hide))
		h->gpus += bit_set_count(has);
	return 0;
}

/* True if the started job holds exactly the GPUs of the pick on its node. It has one record for every type of GPU, each with a part of its nodes. */
static bool holds(job_record_t *j, pick_t *p)
{
	struct held h = { p, p->node ? bit_set_count_range(j->node_bitmap, 0, p->node) : 0, 0 };
	if (j->gres_list_alloc)
		list_for_each(j->gres_list_alloc, add_held, &h);
	return h.gpus == p->gpus;
}

/* Takes the GPUs to hide (1), or gives them back (-1). */
static void mark(pick_t *p, int sign)
{
	for (int b = 0; b < bit_size(p->hide); b++) {
		if (!bit_test(p->hide, b))
			continue;
		sign > 0 ? bit_set(p->ns->gres_bit_alloc, b) : bit_clear(p->ns->gres_bit_alloc, b);
		p->ns->gres_cnt_alloc += sign;
		for (int t = 0; t < p->ns->topo_cnt; t++) {
			bool here = p->ns->topo_gres_bitmap[t] && bit_test(p->ns->topo_gres_bitmap[t], b);
			p->ns->topo_gres_cnt_alloc[t] += here ? sign : 0;
			for (int d = 0; here && d < p->ns->type_cnt; d++)
				p->ns->type_cnt_alloc[d] += p->ns->type_id[d] == p->ns->topo_type_id[t] ? sign : 0;
		}
	}
}
#endif
