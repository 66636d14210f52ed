//! Time of a decision with many communicators: `cargo bench --profile dev -p nccl-plugin`.

use agreement::{ArmRun, Epoch, Slot, SlotPlan, ToMember};
use linkwise_nccl::comm::{Call, Comm, Identity, RING_RECORDS, Role};
use linkwise_nccl::cost_table::CostTable;
use std::sync::Arc;
use tune::{Algorithm, Arm, Collective, Protocol};

fn main() {
    divan::main();
}

const BYTES: u64 = 1 << 20;

/// Communicators with an epoch in force that has runs.
fn comms(n: usize) -> Vec<Comm> {
    let make = |i: usize| {
        let who = Identity { id: i as u64, ordinal: 0, rank: 0, ranks: 8, nodes: 1 };
        let comm = Comm::new(who, Role::Tune, RING_RECORDS);
        (0..2).for_each(|_| comm.note_entries(Slot::of(Collective::AllReduce, BYTES), 0b11_1111, 3)); // seen at AUTO
        let arm = Arm::new(Algorithm::Tree, Protocol::Ll128);
        let plan = SlotPlan {
            slot: Slot::of(Collective::AllReduce, BYTES),
            runs: vec![ArmRun { arm, calls: 1 << 30 }],
            settled: arm,
        };
        comm.on_message(&ToMember::Propose(Arc::new(Epoch::new(1, 0, vec![plan]))));
        comm.on_message(&ToMember::Commit(1));
        comm
    };
    (0..n).map(make).collect()
}

#[divan::bench(args = [1, 256])]
fn decision(bencher: divan::Bencher<'_, '_>, n: usize) {
    let comms = comms(n);
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 97) % n; // not the communicator in the cache
        let mut table = [-1.0f32; 21];
        table[..6].copy_from_slice(&[60.0, 55.0, 70.0, 80.0, 65.0, 75.0]);
        let mut channels = 0;
        let mut costs = CostTable::new(&mut table, 7, 3).unwrap();
        comms[at].call(Call { collective: 4, bytes: BYTES }, &mut costs, &mut channels, |_| {}).unwrap();
        while comms[at].take_decision().is_some() {}
        table
    });
}
