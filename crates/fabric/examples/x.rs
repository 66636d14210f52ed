use fabric::*;
use topology::*;
fn main() {
    let mut t = catalog::host_type("hgx-h100").unwrap();
    t.gpus.truncate(4);
    t.gpu_paths.truncate(4);
    for r in &mut t.gpu_paths {
        r.truncate(4);
    }
    t.nics.truncate(4);
    for n in &mut t.nics {
        n.gpu_paths.truncate(4);
        n.line_rate = Bandwidth::from_gbit_per_s(200.0);
    }
    for a in 0..4 {
        for b in 0..4 {
            if a != b {
                t.gpu_paths[a][b] = PathKind::NvLink(6);
            }
        }
    }
    let nv = t.nvlink.as_mut().unwrap();
    nv.switched = false;
    nv.multicast = false;
    t.name = "gh".into();
    let mut c = Cluster {
        types: vec![t],
        hosts: (0..512).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect(),
        ..Cluster::default()
    };
    c.network.class = NetworkClass::Roce;
    c.check().unwrap();
    let mut k = Constants::default();
    let v: Vec<f64> = std::env::args().skip(1).map(|x| x.parse().unwrap()).collect();
    let n = k.network_mut(NetworkClass::Roce, GpuClass::Hopper);
    if v.len() > 4 {
        n.tree_base_us = v[0];
        n.tree_level_us = v[1];
        n.tree_chunk = v[2];
        n.ring_base_us = v[3];
        n.ring_step_us = v[4];
        n.chunk_max_us = v[5];
    }
    let f = Fabric::with_constants(&c, k);
    for p in [3, 10, 14, 16, 18, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32] {
        print!("{:>8}", format!("{}", Bytes(1 << p)));
        for h in [2u32, 4, 8, 16, 32, 64, 128, 256, 512] {
            let a = Allocation::new((0..h).map(|i| (HostId(i), GpuMask::first(4))));
            let e = f.estimate(&a, Collective::AllReduce, Bytes(1 << p));
            print!(
                " {:>8.1}{}",
                e.time.us(),
                match e.algorithm {
                    Some(topology::nccl::Algorithm::Tree) => "T",
                    Some(topology::nccl::Algorithm::Ring) => "R",
                    _ => "N",
                }
            );
        }
        println!();
    }
}
