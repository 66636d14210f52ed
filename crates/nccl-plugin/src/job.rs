//! The job as a whole, for releases that do not tell communicators apart (NCCL before 2.27.3, or its profiler not loaded): mode `profile` only.
//!
//! A communicator without an identifier cannot agree with its other ranks, for nobody knows who they are. But all processes of the job can
//! agree that they hold the same table: then every communicator has it on all ranks, whoever they are. The job takes part in the agreement
//! like a communicator whose ranks are the job's processes (the launcher says how many, and which one this is). What is agreed on is, as
//! always, a call number N; it holds for **every** communicator at its own call N, also for those that are made later. Every process's answer
//! speaks for all its communicators: it acknowledges only where none of them has begun call N. Ranks of a communicator count its calls alike,
//! so no two of them differ.
//!
//! ```text
//!  leader (process 0) ──"the table from call N"──► job member of a process ──► its communicators: each bound at its own call N
//!                     ◄── acknowledged, or the farthest communicator's count ──┘
//! ```
//!
//! What has to be true: every process of the job has a number of its own, and there are as many as the launcher says. It is doubted, and
//! everything stays at AUTO, until a communicator has been made with one rank for each process; communicators with more ranks than the job
//! has processes (several GPUs in one process, processes that a launcher does not know) stay at AUTO for ever.

use crate::abi::log;
use crate::comm::{Comm, Identity, Role};
use crate::config::{Config, Mode};
use crate::process::Running;
use crate::worker::Change;
use agreement::{KeyPlan, Slot};
use std::sync::{Arc, OnceLock};
use tune::{Arm, Collective};

/// This process's member of the job. It outlives its communicators: those that are made later are bound by what was agreed on.
static JOB: OnceLock<Arc<Comm>> = OnceLock::new();

/// The plan that stands for "each communicator's own part of the table"; none stands for AUTO.
pub fn the_table() -> Vec<KeyPlan> {
    vec![KeyPlan { slot: Slot::of(Collective::AllReduce, 0), runs: Vec::new(), settled: Arm::AUTO }]
}

/// How a communicator without an identifier takes part. `None`: it stays at AUTO, and why has been said.
pub fn admit(config: &Config, run: &mut Running, ranks: u32) -> Option<Role> {
    static SAID: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    if config.mode != Mode::Profile {
        log::once(
            &SAID,
            "this NCCL does not tell communicators apart (2.27.3 and later do, with the profiler loaded, 2.28 always): AUTO; \
             mode profile would work",
        );
        return None;
    }
    let Some(place) = config.process else {
        log::once(
            &SAID,
            "this NCCL does not tell communicators apart, and no launcher says how many processes the job has: AUTO; \
             set LINKWISE_PROCESS=RANK/PROCESSES in each",
        );
        return None;
    };
    if ranks > place.processes {
        let text = format!(
            "a communicator of {ranks} ranks in a job of {} processes: AUTO there (several GPUs in one process, or processes that the \
             launcher does not know)",
            place.processes
        );
        log::once(&SAID, &text);
        return None;
    }
    let job = JOB.get_or_init(|| {
        let (rank, ranks) = (place.rank as i32, place.processes);
        Arc::new(Comm::new(Identity { id: config.job, ordinal: 0, rank, ranks, nodes: 0 }, Role::Job, 0))
    });
    // A second life (all communicators ended, then new ones) keeps what was agreed on and takes part in nothing new.
    if ranks == place.processes && !run.job_announced && job.is_fresh() {
        run.job_announced = true;
        run.tell(Change::Came { comm: job.clone(), owner: 0 });
    }
    Some(Role::Follow)
}

/// A communicator was made.
pub fn follow(comm: &Arc<Comm>) {
    if let Some(job) = JOB.get() {
        job.lead(comm);
    }
}

/// A communicator has ended.
pub fn release(comm: &Arc<Comm>) {
    if let Some(job) = JOB.get() {
        job.release(comm);
    }
}

/// This process's member of the job, where there is one.
pub fn member() -> Option<&'static Arc<Comm>> {
    JOB.get()
}
