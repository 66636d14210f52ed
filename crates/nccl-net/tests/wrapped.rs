//! `LINKWISE_NET_WRAP`: with nothing to do, the plugin shows NCCL the tables of the site's own plugin. Needs `cc`; a visible skip without.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const ROLE: &str = "LINKWISE_TEST_NET_ROLE";
const VERSIONS: [u32; 5] = [8, 9, 10, 11, 12];

/// Not a test of its own: loads the plugin as NCCL does, and prints the name and the number of devices in every table.
#[test]
fn load() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let library = std::env::current_exe().unwrap().parent().unwrap().join("liblinkwise_nccl_net.so");
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: the plugin's file.
    let library = unsafe { dlopen(path.as_ptr(), 2) };
    assert!(!library.is_null(), "{path:?}");
    for version in VERSIONS {
        let name = CString::new(format!("ncclNetPlugin_v{version}")).unwrap();
        // SAFETY: a table begins with a name, `init` and `devices`.
        unsafe {
            let table = dlsym(library, name.as_ptr()).cast::<*const c_void>();
            let devices: extern "C" fn(*mut c_int) -> c_int = std::mem::transmute(*table.add(2));
            let mut count = -1;
            assert_eq!(devices(&mut count), 0);
            println!("\ntable {} {count}", CStr::from_ptr((*table).cast()).to_str().unwrap());
        }
    }
}

/// The tables that NCCL finds with these variables.
fn tables(vars: &[(&str, &str)]) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "load", "--nocapture", "--test-threads=1"]).env(ROLE, "load");
    let out = command.envs(vars.iter().copied()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().filter_map(|l| l.strip_prefix("table ").map(str::to_owned)).collect()
}

fn build(to: &Path, old: bool) -> Option<PathBuf> {
    let library = to.join(if old { "old.so" } else { "own.so" });
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrapped/plugin.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).args(old.then_some("-DOLD"));
    cc.status().ok()?.success().then_some(library)
}

#[test]
fn with_nothing_to_do_nccl_gets_the_tables_of_the_sites_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let (Some(own), Some(old)) = (build(folder.path(), false), build(folder.path(), true)) else {
        println!("SKIP with_nothing_to_do_nccl_gets_the_tables_of_the_sites_plugin: no C compiler");
        return;
    };
    let (own, old) = (own.to_str().unwrap(), old.to_str().unwrap());
    let named =
        |name: &str, versions: &[u32], count| versions.iter().map(|v| format!("{name}{v} {count}")).collect::<Vec<_>>();
    let ours = |count: usize| vec![format!("linkwise {count}"); 5];
    assert_eq!(tables(&[("LINKWISE_NET", "off"), ("LINKWISE_NET_WRAP", own)]), named("own", &VERSIONS, 3));
    let mut some = named("own", &VERSIONS[..4], 3);
    some.push("linkwise 0".into());
    assert_eq!(tables(&[("LINKWISE_NET", "off"), ("LINKWISE_NET_WRAP", old)]), some, "a table that it lacks");
    let rails = [("LINKWISE_NET", "tcp"), ("LINKWISE_NET_RAILS", "127.0.0.1")];
    assert_eq!(tables(&[rails[0], rails[1], ("LINKWISE_NET_WRAP", own)]), ours(1), "this plugin has something to do");
    assert_eq!(tables(&[("LINKWISE_NET", "off"), ("LINKWISE_NET_WRAP", "/none.so")]), ours(0));
    assert_eq!(tables(&[("LINKWISE_NET", "off")]), ours(0));
}
