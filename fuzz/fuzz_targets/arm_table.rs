//! Tables of arms, linkwise's own and the CSV of NVIDIA's example tuner: no panic; what is read can be written and read again.
#![no_main]

use autotune::arm_table::ArmTable;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok((read, _)) = ArmTable::read(text) else { return };
    if read.table.lines.is_empty() {
        return;
    }
    let (again, _) = ArmTable::read(&read.table.text()).expect("linkwise's own form");
    assert_eq!(again.table, read.table);
    let (csv, _) = read.table.csv();
    ArmTable::read(&csv).expect("the CSV");
});
