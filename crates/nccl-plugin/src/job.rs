//! Agreement of the whole job, for releases that do not identify communicators (NCCL before 2.27.3, or without its profiler). Mode `profile` only.
//!
//! A communicator without an identifier cannot agree among its ranks: no rank knows which processes hold the other
//! ranks. But all processes of the job can agree that they hold the same table. Then every communicator uses the table
//! on all ranks. The job takes part in the agreement like a communicator whose ranks are the job's processes. The
//! launcher provides their number and the number of this process. The agreed call number N applies to **every**
//! communicator at its own call N, also to communicators made later. A process answers for all its communicators: it
//! acknowledges only if none of them has begun call N. The ranks of a communicator count its calls equally, so they all
//! switch at the same call.
//!
//! ```text
//!  leader (process 0) ──"the table from call N"──► job member of a process ──► its communicators: each bound at its own call N
//!                     ◄── acknowledged, or the farthest communicator's count ──┘
//! ```
//!
//! A communicator with a process outside of the job (weights sent to an inference server, an evaluator, a sidecar) cannot be recognised: that
//! process does not know the table, launches other algorithms, and the communicator **hangs**. So all this happens only with `job = closed`, which
//! promises that there is no such process.
//!
//! Over TCP the job's token must be a secret: without identifiers it alone keeps strangers from leading the job ([`crate::envelope`]).
//!
//! Two more conditions must hold: every process of the job has its own number, and the number of processes is the launcher's. Until a communicator with one
//! rank per process confirms this, everything stays at AUTO. Communicators with more ranks than the job has processes
//! (several GPUs per process, or processes unknown to the launcher) stay at AUTO.

use crate::abi::LOG;
use crate::comm::{Comm, Identity, Role};
use crate::config::{Config, Mode};
use crate::process::ProcessState;
use crate::worker::MembershipChange;
use agreement::{Rendezvous, Slot, SlotPlan};
use std::sync::{Arc, OnceLock};
use tune::{Arm, Collective};

/// This process's member of the job. It outlives communicators: an agreement also applies to communicators made later.
static JOB: OnceLock<Arc<Comm>> = OnceLock::new();

/// The plan that means "each communicator's own part of the table". An epoch without plans means AUTO.
pub fn job_table_marker() -> Vec<SlotPlan> {
    vec![SlotPlan { slot: Slot::of(Collective::AllReduce, 0), runs: Vec::new(), settled: Arm::AUTO }]
}

/// The role of a communicator without an identifier. `None`: it stays at AUTO, and the reason has been logged.
pub fn role_in_job(config: &Config, run: &mut ProcessState, ranks: u32) -> Option<Role> {
    static WARNED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    if config.mode != Mode::Profile {
        LOG.once(
            &WARNED,
            "this NCCL does not identify communicators, so all stay at AUTO; use NCCL 2.28, or 2.27.3 and later with the profiler loaded, or \
             mode profile",
        );
        return None;
    }
    if !config.closed_job {
        return None; // logged with the other promises that this NCCL needs
    }
    if config.token_is_guessable && matches!(config.rendezvous, Some(Rendezvous::Tcp { .. })) {
        LOG.once(
            &WARNED,
            "this NCCL does not identify communicators, so only the job's token keeps strangers from leading it; the token is the launcher's job id, \
             which others can guess, so all communicators stay at AUTO; use linkwise run, or set LINKWISE_TOKEN to a random text",
        );
        return None;
    }
    let Some(place) = config.process else {
        LOG.once(
            &WARNED,
            "this NCCL does not identify communicators, and no launcher gives the number of processes, so all communicators stay at AUTO; set \
             LINKWISE_PROCESS=RANK/PROCESSES in each process",
        );
        return None;
    };
    if ranks > place.processes {
        let text = format!(
            "a communicator of {ranks} ranks in a job of {} processes stays at AUTO: a process has several GPUs, or the launcher does not know \
             all processes",
            place.processes
        );
        LOG.once(&WARNED, &text);
        return None;
    }
    let job = JOB.get_or_init(|| {
        let (rank, ranks) = (place.rank as i32, place.processes);
        Arc::new(Comm::new(Identity { id: config.job, ordinal: 0, rank, ranks, nodes: 0 }, Role::Job, 0))
    });
    // If all communicators have ended and new ones are made, the member keeps the agreement and joins no new one.
    if ranks == place.processes && !run.job_announced && job.is_fresh() {
        run.job_announced = true;
        run.notify_worker(MembershipChange::Joined { comm: job.clone(), owner: 0 });
    }
    Some(Role::Follow)
}

/// A communicator was made.
pub fn follow(comm: &Arc<Comm>) {
    if let Some(job) = JOB.get() {
        job.add_follower(comm);
    }
}

/// A communicator has ended.
pub fn release(comm: &Arc<Comm>) {
    if let Some(job) = JOB.get() {
        job.remove_follower(comm);
    }
}

/// This process's member of the job, if there is one.
pub fn member() -> Option<&'static Arc<Comm>> {
    JOB.get()
}
