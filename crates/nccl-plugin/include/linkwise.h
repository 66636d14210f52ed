/* SPDX-License-Identifier: Apache-2.0
 * linkwise: what a program may tell the plugin that NCCL has loaded.
 *
 * Say where a training step begins and ends: the plugin then keeps what makes steps shorter, even where it makes a collective slower. Without
 * it the plugin goes by the times of the collectives alone. Cheap (tens of nanoseconds); any thread; does nothing where the plugin is off.
 *
 * Get the functions by dlsym from the library that NCCL_TUNER_PLUGIN names, or link with -llinkwise_nccl. Both always return 0.
 */
#ifndef LINKWISE_H
#define LINKWISE_H
#ifdef __cplusplus
extern "C" {
#endif

/* A training step begins. A second begin without an end starts it anew. */
int linkwise_step_begin(void);
/* The step ends. An end without a begin is nothing. */
int linkwise_step_end(void);

#ifdef __cplusplus
}
#endif
#endif
