//! The arms of a run: all that NCCL has for a collective, or those that NCCL's model considers available on the given
//! GPUs.

use crate::ProfileError;
use ::tune::{Algorithm, Arm, Protocol};
use nccl_model::{BuildError, Communicator};
use topology::nccl::Version;
use topology::{Cluster, Collective};

/// Channel counts of `--channels auto` if the machine is unknown.
const CHANNELS_UNKNOWN: [u8; 3] = [4, 8, 16];

/// Every algorithm and protocol that NCCL has for a collective on any hardware, AUTO first. Source: the used entries of
/// NCCL's cost table.
pub fn known(collective: Collective) -> Vec<Arm> {
    use Algorithm::{CollNetChain, CollNetDirect, Nvls, NvlsTree, Pat, Ring, Tree};
    let (every_protocol, simple): (&[Algorithm], &[Algorithm]) = match collective {
        Collective::AllReduce => (&[Tree, Ring], &[Nvls, NvlsTree, CollNetDirect, CollNetChain]),
        Collective::AllGather | Collective::ReduceScatter => (&[Ring], &[Pat, Nvls, CollNetDirect]),
        Collective::Broadcast | Collective::Reduce => (&[Ring], &[]),
        Collective::AllToAll | Collective::SendRecv => (&[], &[]),
    };
    let mut out = vec![Arm::AUTO];
    out.extend(every_protocol.iter().flat_map(|a| Protocol::ALL.iter().rev().map(|p| Arm::new(*a, *p))));
    out.extend(simple.iter().map(|a| Arm::new(*a, Protocol::Simple)));
    out
}

/// The communicator of a job's GPUs by NCCL's model. `gpus` is a list such as `n0 n1:0`; `None` means all usable GPUs.
pub fn communicator(cluster: &Cluster, gpus: Option<&str>, nccl: Version) -> Result<Communicator, ProfileError> {
    Communicator::of_list(nccl, cluster, gpus).map_err(|e| match e {
        BuildError::Gpus(why) => ProfileError::input(format!("--gpus: {why}")),
        e if e.is_malformed() => ProfileError::input(e),
        e => ProfileError::impossible(e),
    })
}

/// The arms of `--arms`: a list, or `available`. With a communicator, NCCL's model leaves out unavailable arms. Without
/// one, an unavailable arm fails its first launches and is given up.
pub fn of(
    asked: &str,
    channels: Option<&str>,
    collective: Collective,
    sizes: &[u64],
    communicator: Option<&Communicator>,
) -> Result<Vec<Arm>, ProfileError> {
    let mut arms = match (asked, communicator) {
        ("available", None) => known(collective),
        ("available", Some(c)) => {
            let has = |arm: &Arm| {
                let Some((a, p)) = arm.forced else { return true };
                sizes.iter().any(|&s| c.choice_with(collective, s, a, p).is_some())
            };
            known(collective).into_iter().filter(has).collect()
        }
        (list, _) => listed(list)?,
    };
    if arms.len() == 1 && asked == "available" {
        return Err(ProfileError::impossible(format!("NCCL has no choice to make for {collective}")));
    }
    let counts = match channels {
        None => Vec::new(),
        Some("auto") => match communicator {
            None => CHANNELS_UNKNOWN.to_vec(),
            Some(c) => {
                let own = c.choose(collective, sizes.last().copied().unwrap_or(1)).map_or(8, |d| d.channels);
                let near = [own / 4, own / 2, own * 2].map(|n| n.clamp(1, u32::from(::tune::arm::CHANNELS_MAX)) as u8);
                near.into_iter().filter(|n| u32::from(*n) != own).collect()
            }
        },
        Some(list) => numbers(list)?,
    };
    let plain: Vec<Arm> = arms.iter().copied().filter(|a| a.channels.is_none()).collect();
    for arm in plain.iter().flat_map(|a| counts.iter().map(|c| Arm { channels: Some(*c), ..*a })) {
        if !arms.contains(&arm) {
            arms.push(arm);
        }
    }
    ::tune::registry::check_arms(&arms)
        .map_err(|e| ProfileError::input(format!("--arms and --channels make {} arms: {e}", arms.len())))?;
    Ok(arms)
}

/// A list of arms, separated by commas.
fn listed(list: &str) -> Result<Vec<Arm>, ProfileError> {
    let arms = list.split(',').map(|a| a.parse::<Arm>()).collect::<Result<Vec<_>, _>>();
    let arms = arms.map_err(|e| ProfileError::input(format!("--arms: {e}")))?;
    ::tune::registry::check_arms(&arms).map_err(|e| ProfileError::input(format!("--arms: {e}")))?;
    Ok(arms)
}

fn numbers(list: &str) -> Result<Vec<u8>, ProfileError> {
    let max = ::tune::arm::CHANNELS_MAX;
    let one = |word: &str| {
        word.trim().parse::<u8>().ok().filter(|n| (1..=max).contains(n)).ok_or_else(|| {
            ProfileError::input(format!("--channels: `{word}` is not a number from 1 to {max}; write 8,16,32 or auto"))
        })
    };
    list.split(',').map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arms: &[Arm]) -> Vec<String> {
        arms.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_collective_has_the_ways_of_nccls_cost_table() {
        assert_eq!(names(&known(Collective::Broadcast)), ["AUTO", "RING/SIMPLE", "RING/LL128", "RING/LL"]);
        let all = names(&known(Collective::AllReduce));
        assert_eq!(all.len(), 1 + 6 + 4);
        assert!(all.contains(&"TREE/LL128".into()) && all.contains(&"NVLSTREE/SIMPLE".into()), "{all:?}");
        assert!(!all.contains(&"PAT/SIMPLE".into()));
        assert!(names(&known(Collective::AllGather)).contains(&"PAT/SIMPLE".into()));
        let e = of("available", None, Collective::AllToAll, &[1 << 20], None).unwrap_err();
        assert!(!e.is_malformed(), "{e}");
    }

    #[test]
    fn the_model_of_nccl_leaves_out_arms_that_a_machine_cannot_run() {
        let of = |gpus| {
            let cluster = topology::catalog::cluster("h100").unwrap();
            let gpus = cluster.parse_gpus([gpus]).unwrap();
            let model = Communicator::build("2.28".parse().unwrap(), &cluster, gpus.parts()).unwrap();
            names(&of("available", None, Collective::AllReduce, &[16 << 20], Some(&model)).unwrap())
        };
        let one = of("n0");
        assert!(one.contains(&"NVLS/SIMPLE".into()) && one.contains(&"RING/LL128".into()), "{one:?}");
        assert!(!one.contains(&"NVLSTREE/SIMPLE".into()), "there is no tree between hosts: {one:?}");
        let two = of("n0 n1");
        assert!(two.contains(&"NVLSTREE/SIMPLE".into()) && !two.contains(&"COLLNETCHAIN/SIMPLE".into()), "{two:?}");
    }

    #[test]
    fn channel_counts_multiply_arms_and_are_read_strictly() {
        let of = |channels| of("AUTO,RING/SIMPLE,RING/LL@4", channels, Collective::AllReduce, &[1 << 20], None);
        assert_eq!(
            names(&of(Some("8,16")).unwrap()),
            ["AUTO", "RING/SIMPLE", "RING/LL@4", "AUTO@8", "AUTO@16", "RING/SIMPLE@8", "RING/SIMPLE@16"]
        );
        assert_eq!(of(Some("auto")).unwrap().len(), 3 + 2 * 3);
        for bad in ["0", "65", "8,", "many"] {
            assert!(of(Some(bad)).unwrap_err().to_string().contains("--channels"), "{bad}");
        }
    }
}
