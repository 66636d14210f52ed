//! Lists of hosts and GPUs: no panic, errors point into the text, and what is read prints and reads back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topology::{Cluster, HostId, ListReader, catalog, list};

fuzz_target!(|text: &str| {
    let plain = catalog::cluster("h100").unwrap();
    let mut named = plain.clone();
    let names = ["r0-n08-ib", "r0-n10-ib", "7", "GPU-1"];
    named.hosts.iter_mut().zip(names).for_each(|(h, n)| h.name = n.into());
    for cluster in [&plain, &named] {
        let reader = ListReader::new(cluster);
        let check = |cluster: &Cluster, order: &[(HostId, topology::GpuMask)]| {
            let printed = cluster.gpu_list_in_order(order);
            assert_eq!(reader.gpus_in_order([printed.as_str()]).as_deref(), Ok(order), "{printed}");
        };
        match reader.gpus_in_order([text]) {
            Ok(order) => check(cluster, &order),
            Err(e) => assert!(text.is_char_boundary(e.offset) && e.column >= 1 && !e.message.is_empty()),
        }
        if let Ok(hosts) = reader.hosts([text]) {
            let printed = cluster.host_list(hosts.iter().copied());
            assert_eq!(reader.hosts([printed.as_str()]).map(|h| h.len()), Ok(hosts.len()), "{printed}");
        }
    }
    if let Ok(names) = list::expand(text, 1000) {
        let printed = list::compress(names.iter().map(String::as_str));
        assert_eq!(list::expand(&printed, 1000).as_deref(), Ok(names.as_slice()), "{printed}");
    }
});
