//! The plugin's file of settings, its table of arms and the script of a test.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linkwise_nccl::config::Config;
use linkwise_nccl::profile::Profile;
use linkwise_nccl::rewards::Script;

fuzz_target!(|text: &str| {
    let file = |k: &str| (k == "LINKWISE_CONFIG").then(|| "/settings".to_string());
    let _ = Config::load(file, |_| Ok(text.to_string()));
    if let Ok(p) = Profile::parse(text) {
        let _ = p.plans(8, 2);
    }
    let _ = Script::parse(text);
});
