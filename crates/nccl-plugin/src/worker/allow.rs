//! The epochs that this rank accepts. A leader has proved that it knows the job's token; its proposal must also be one that this rank's own settings
//! allow.

use crate::comm::{Comm, Role};
use crate::config::{Config, Mode};
use crate::views::leaves_auto;
use agreement::{Epoch, SlotPlan, ToMember};

/// False for arms that this rank's mode rules out.
pub fn allows(config: &Config, comm: &Comm, message: &ToMember) -> bool {
    let (ToMember::Ask(epoch) | ToMember::Propose(epoch)) = message else { return true };
    match (&config.profile, comm.role()) {
        _ if epoch.plans.is_empty() => true, // AUTO, or a renewal of what was accepted
        (Some(_), Role::Job) => epoch.plans == crate::job::job_table_marker(),
        (Some(table), _) => is_part_of(epoch, &table.plans(comm.ranks, comm.nodes)),
        // The arms themselves are compared with the entries that this rank has seen: `Comm::on_message`.
        (None, _) => config.mode == Mode::Adaptive,
    }
}

/// True if each plan is one of the table's, or stays at AUTO.
fn is_part_of(epoch: &Epoch, table: &[SlotPlan]) -> bool {
    epoch.plans.iter().all(|plan| !leaves_auto(plan) || table.contains(plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Identity;
    use std::sync::Arc;
    use tune::{Algorithm, Arm, Protocol};

    #[test]
    fn with_a_table_only_its_own_arms_are_accepted() {
        let env = |k: &str| match k {
            "LINKWISE_MODE" => Some("profile".to_owned()),
            "LINKWISE_PROFILE" => Some("/table".to_owned()),
            _ => None,
        };
        let config = Config::load(env, |_| Ok("AllReduce 0 max TREE/LL\n".into())).unwrap();
        let who = Identity { id: 1, ordinal: 0, rank: 0, ranks: 8, nodes: 1 };
        let comm = |role| Comm::new(who, role, 0);
        let own = config.profile.as_ref().unwrap().plans(8, 1);
        let mut other = own.clone();
        other[0].settled = Arm::new(Algorithm::Ring, Protocol::Ll);
        let asked = |role, plans: &[SlotPlan]| {
            [ToMember::Ask, ToMember::Propose]
                .map(|kind| allows(&config, &comm(role), &kind(Arc::new(Epoch::new(1, 0, plans.to_vec())))))
        };
        assert_eq!(asked(Role::Tune, &own), [true; 2]);
        assert_eq!(asked(Role::Tune, &own[..1]), [true; 2]);
        assert_eq!(asked(Role::Tune, &[]), [true; 2], "AUTO");
        assert_eq!(asked(Role::Tune, &other), [false; 2]);
        assert_eq!(
            (asked(Role::Job, &own), asked(Role::Job, &crate::job::job_table_marker())),
            ([false; 2], [true; 2])
        );
        assert!(allows(&config, &comm(Role::Tune), &ToMember::Commit(1)));
    }
}
