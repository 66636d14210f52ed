//! A leader and a member that get any messages, in any order: no panic, no verdict without all acknowledgements, no acknowledgement of a call that has
//! begun, and what is read is what was written.
#![no_main]

use agreement::{CallAction, Leader, Member, Slot, SlotPlan, ToLeader, ToMember};
use libfuzzer_sys::fuzz_target;
use std::collections::{BTreeMap, BTreeSet};
use tune::{Algorithm, Arm, Collective, Protocol};
use wire::{Reader, Writer};

const MEMBERS: usize = 3;

fuzz_target!(|bytes: &[u8]| {
    let mut leader = Leader::new(MEMBERS, 100, 1000).lead(u64::from(bytes.first().map_or(0, |b| b & 1)) * 1000);
    let mut member = Member::default();
    let (mut begun, mut waits, mut now_us) = (0u64, false, 0u64);
    let mut acknowledged: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    let mut gone = BTreeSet::new();
    let mut rest = bytes.get(1..).unwrap_or_default();
    // Two bytes of head: what is done, and the length of its message.
    while let Some((head, after)) = rest.split_first_chunk::<2>() {
        let (body, next) = after.split_at(usize::from(head[1]).min(after.len()));
        rest = next;
        let (kind, from) = (head[0] & 7, usize::from(head[0] >> 3) % (MEMBERS + 1));
        match kind {
            0 | 1 => {
                let Ok(message) = ToMember::read(&mut Reader::new(body)) else { continue };
                let mut w = Writer::default();
                message.write(&mut w);
                assert_eq!(ToMember::read(&mut Reader::new(&w.0)), Ok(message.clone()));
                let answer = member.on_message(&message, begun, |_| kind == 0);
                if let Some(ToLeader::Ack { epoch, .. }) = &answer {
                    let held = member.bound_to().unwrap();
                    assert!(held.number == *epoch && begun <= held.from_call + u64::from(waits), "{begun} calls: {held:?}");
                }
                assert!(member.bound_to().is_none_or(|e| member.boundary() <= e.from_call));
            }
            2 | 3 => {
                let Ok(message) = ToLeader::read(&mut Reader::new(body)) else { continue };
                let mut w = Writer::default();
                message.write(&mut w);
                let again = ToLeader::read(&mut Reader::new(&w.0));
                // Times may be NaN, which equals nothing.
                assert!(again.as_ref() == Ok(&message) || matches!(message, ToLeader::Readings(_)), "{again:?}");
                if let ToLeader::Ack { epoch, .. } = &message {
                    acknowledged.entry(*epoch).or_default().insert(from);
                }
                if message == ToLeader::Left {
                    gone.insert(from);
                }
                leader.on_message(from, &message, now_us, |to, _| assert!(to < MEMBERS));
            }
            4 => {
                let tree = Arm::new(Algorithm::Tree, Protocol::Ll);
                let plan = SlotPlan { slot: Slot::of(Collective::AllReduce, 1 << 20), runs: Vec::new(), settled: tree };
                leader.propose(vec![plan], begun, now_us, |to, _| assert!(to < MEMBERS));
            }
            5 => {
                now_us += u64::from(head[1]) * 50;
                leader.tick(now_us, |to, _| assert!(to < MEMBERS));
            }
            _ => {
                // A call that waits has begun; the next one begins after it.
                if !waits {
                    begun += 1;
                }
                waits = false;
                let call = begun - 1;
                for _ in 0..agreement::member::DUE_MAX + 3 {
                    match member.action_at(call) {
                        CallAction::Switch(e) => assert!(e.from_call <= call, "{e:?} at {call}"),
                        CallAction::Wait => {
                            assert!(member.bound_to().is_some_and(|e| e.from_call <= call));
                            waits = true;
                            break;
                        }
                        CallAction::Proceed => break,
                    }
                }
            }
        }
        if let Some(ended) = leader.take_ended().filter(|e| e.committed) {
            let by = acknowledged.get(&ended.epoch.number).cloned().unwrap_or_default();
            assert!((0..MEMBERS).all(|m| by.contains(&m) || gone.contains(&m)), "{ended:?}: {by:?}");
        }
    }
});
