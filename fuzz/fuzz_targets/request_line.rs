//! Request lines of `linkwise place`: no panic, short messages, and what is asked is checked, packed and searched within limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use place::read::{Defaults, Reader};
use place::{Contention, Registry, Slack, options, ranks, shape};
use std::sync::LazyLock;
use topology::{Bytes, Cluster, GpuMask, HostId, catalog};

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| catalog::cluster("het-4mix").expect("built in"));
static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::shipped);

fuzz_target!(|bytes: &[u8]| {
    let defaults = Defaults { size: Bytes::mib(16), contention: Contention::Merge, loss_weight: 0.0, slack: Slack::default() };
    let (_, asked) = Reader::new(&CLUSTER, defaults, &REGISTRY).line(bytes);
    let request = match asked {
        Ok(a) => a.request,
        Err(e) => return assert!(!e.code.is_empty() && e.message.chars().count() <= 404),
    };
    let Ok(usable) = request.usable(&CLUSTER) else { return };
    assert!(usable.gpu_count() >= request.gpus && request.free.contains_all(&usable));
    // Counts only: one part per count is enough for the shape.
    let of_host = |&(host, mask): &(HostId, GpuMask)| {
        let part = |n: usize| place_part(host, GpuMask::from_indices(mask.iter().take(n)));
        options::HostOptions { by_count: (1..=mask.count().min(request.gpus)).map(|n| vec![part(n)]).collect() }
    };
    let options: Vec<_> = usable.parts().iter().map(of_host).collect();
    if let Ok(shape) = shape::Shape::new(&request, &options) {
        assert!(shape.can_end(0, shape.start()));
        assert_ne!(shape.combinations(), Some(0));
    }
    let order = ranks::host_order(&CLUSTER, usable.parts());
    assert_eq!(ranks::rank_order(&order, &[]).len(), usable.gpu_count());
});

fn place_part(host: HostId, mask: GpuMask) -> predict::HostShare {
    predict::HostShare {
        host,
        mask,
        count: mask.count() as u8,
        whole: false,
        intra_gb_per_s: f64::INFINITY,
        nic_gb_per_s: f64::INFINITY,
        class_intra_gb_per_s: f64::INFINITY,
        host_type: 0,
        representative: mask,
    }
}
