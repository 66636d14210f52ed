//! Policy files of `linkwise tune profile`: no panic, and what is read names an arm of its table for every size.
#![no_main]

use libfuzzer_sys::fuzz_target;

use autotune::policy_file::PolicyFile;

fuzz_target!(|text: &str| {
    // The hash would stop nearly every mutation: it is made to fit, so that what lies behind it is reached.
    let Ok(mut raw) = serde_json::from_str::<PolicyFile>(text) else {
        return assert!(PolicyFile::read(text).is_err());
    };
    raw.sha256 = raw.hash();
    let Ok(fitting) = raw.text() else { return };
    let Ok(file) = PolicyFile::read(&fitting) else { return };
    let profile = file.profile(false).expect("a file that was read has a profile");
    for bits in 0..64 {
        assert!(profile.arms.contains(&profile.arm_for(1 << bits)));
    }
});
