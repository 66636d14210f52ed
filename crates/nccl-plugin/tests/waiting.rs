//! A call that waits for a verdict: nothing else of its communicator waits for it.

use agreement::{Epoch, Slot, SlotPlan, ToMember};
use linkwise_nccl::comm::{Call, Comm, Identity, Role};
use linkwise_nccl::cost_table::CostTable;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tune::{Algorithm, Arm, Collective, Protocol};

/// Far longer than any step here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const BYTES: u64 = 1 << 20;

/// A rank that is bound to an epoch which begins with its next call.
fn bound() -> Arc<Comm> {
    let who = Identity { id: 1, ordinal: 0, rank: 0, ranks: 8, nodes: 1 };
    let comm = Arc::new(Comm::new(who, Role::Tune, 0));
    let slot = Slot::of(Collective::AllReduce, BYTES);
    (0..2).for_each(|_| comm.note_entries(slot, 0b11_1111, 3)); // seen at AUTO
    let plan = SlotPlan { slot, runs: Vec::new(), settled: Arm::new(Algorithm::Tree, Protocol::Ll128) };
    comm.on_message(&ToMember::Propose(Arc::new(Epoch::new(1, 0, vec![plan]))));
    assert!(comm.is_bound());
    comm
}

fn call(comm: &Comm, log: impl Fn(&str)) -> bool {
    let mut table = [-1.0f32; 21];
    table[..6].copy_from_slice(&[60.0, 55.0, 70.0, 80.0, 65.0, 75.0]);
    let mut costs = CostTable::new(&mut table, 7, 3).unwrap();
    comm.call(Call { collective: 4, bytes: BYTES }, &mut costs, &mut 0, log).is_ok()
}

/// A call in a thread of its own that waits, and hangs in its log until the sender tells it to go on.
fn hangs_in_its_log(comm: &Arc<Comm>) -> (JoinHandle<bool>, Sender<()>) {
    let (logs, has_logged) = channel();
    let (release, released) = channel();
    let of_call = comm.clone();
    let waits = std::thread::spawn(move || {
        call(&of_call, |_| {
            logs.send(()).unwrap();
            let _ = released.recv_timeout(PATIENCE); // a pipe that nothing reads
        })
    });
    has_logged.recv_timeout(PATIENCE).expect("the call says that it waits");
    (waits, release)
}

#[test]
fn while_a_waiting_call_writes_to_a_log_that_hangs_the_verdict_still_arrives() {
    let comm = bound();
    let (waits, release) = hangs_in_its_log(&comm);
    let (done, is_done) = channel();
    let of_worker = comm.clone();
    std::thread::spawn(move || {
        of_worker.on_message(&ToMember::Commit(1));
        let _ = done.send(of_worker.waiting_for().is_some());
    });
    let waiting = is_done.recv_timeout(PATIENCE / 4);
    release.send(()).unwrap();
    assert_eq!(waiting, Ok(true), "the worker is not delayed by the log, and sees the call wait");
    assert!(waits.join().unwrap());
    assert_eq!(comm.epoch(), 1);
}

#[test]
fn a_communicator_that_ends_while_its_waiting_call_writes_to_the_log_knows_of_the_call() {
    let comm = bound();
    let (waits, release) = hangs_in_its_log(&comm);
    let of_finalize = comm.clone();
    let ends = std::thread::spawn(move || of_finalize.end());
    std::thread::sleep(Duration::from_millis(20));
    release.send(()).unwrap();
    assert!(ends.join().unwrap(), "the memory of the communicator stays for the call");
    assert!(!waits.join().unwrap(), "the call is aborted");
}
