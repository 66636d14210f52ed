/* SPDX-License-Identifier: Apache-2.0
 * linkwise: lets a program report its training steps to the plugin that NCCL has loaded.
 *
 * The plugin compares arms (algorithm, protocol, channels) by the time of whole steps. An arm holds for all calls of a step and changes only where a step
 * begins, so report every step of the loop, and begin the next one right after the last one's end.
 *
 * When does a step end? Where the program waits for the GPU anyway: after loss.item(), cudaStreamSynchronize, or cudaEventSynchronize on an event of this
 * step. A program that never waits may run up to three steps ahead of the GPU: the plugin judges an arm by the steps of its block and the three that
 * follow. Farther ahead (a loop that waits every 50 steps), a step's time says nothing about its calls: then wait on an event of the step before the last
 * one in each step, which keeps one step in flight and costs nothing. Every step must have the same calls; report a step per optimizer step, with its
 * micro-batches inside, and leave evaluation and checkpoints outside.
 *
 * Without steps the plugin finds the period of the calls by itself, if there is one. A call takes tens of nanoseconds, may come from any thread, and does
 * nothing if the plugin is off.
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
/* The step ends; the GPU has finished it, or one of the three steps before. An end without a begin is ignored. */
int linkwise_step_end(void);

#ifdef __cplusplus
}
#endif
#endif
