/* SPDX-License-Identifier: Apache-2.0
 * linkwise: lets a program report its training steps to the plugin that NCCL has loaded.
 *
 * With steps the plugin keeps the arms that make steps shorter, even if a collective gets slower. Without them it judges arms by the intervals
 * between NCCL's groups. A call takes tens of nanoseconds, may come from any thread, and does nothing if the plugin is off.
 *
 * Get the functions by dlsym from the library that NCCL_TUNER_PLUGIN names, or link with -llinkwise_nccl. Both always return 0.
 */
#ifndef LINKWISE_H
#define LINKWISE_H
#ifdef __cplusplus
extern "C" {
#endif

/* A training step begins. A second begin without an end restarts the step. */
int linkwise_step_begin(void);
/* The step ends. An end without a begin is ignored. */
int linkwise_step_end(void);

#ifdef __cplusplus
}
#endif
#endif
