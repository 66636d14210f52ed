//! Time of one candidate: `cargo bench -p nccl-model`.

use nccl_model::{Communicator, HostCache};
use topology::nccl::Version;
use topology::{Collective, GpuMask, HostId, catalog};

fn main() {
    divan::main();
}

const RELEASE: Version = Version { major: 2, minor: 28, patch: None };

fn order(hosts: u32) -> Vec<(HostId, GpuMask)> {
    (0..hosts).map(|h| (HostId(h), GpuMask::first(if h % 3 == 2 { 3 } else { 8 }))).collect()
}

#[divan::bench(args = [1, 2, 4, 8, 32])]
fn build_and_bandwidth(bencher: divan::Bencher, hosts: u32) {
    let cluster = catalog::cluster("32xhgx-h100").unwrap();
    let order = order(hosts);
    let mut cache = HostCache::default();
    bencher.bench_local(|| {
        let c = Communicator::build_with(&mut cache, RELEASE, &cluster, &order).unwrap();
        c.busbw(Collective::AllReduce, 1 << 30)
    });
}

#[divan::bench(args = [1, 4, 32])]
fn choose(bencher: divan::Bencher, hosts: u32) {
    let cluster = catalog::cluster("32xhgx-h100").unwrap();
    let c = Communicator::build(RELEASE, &cluster, &order(hosts)).unwrap();
    bencher.bench_local(|| c.choose(Collective::AllReduce, divan::black_box(16 << 20)));
}
