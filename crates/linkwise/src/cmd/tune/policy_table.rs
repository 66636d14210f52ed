//! A policy file as a table.

use autotune::policy_file::{PolicyFile, SizeLine};
use console::{table, text_of};

/// The result of an offline run: one line per size and measured arm, then the arms that could not be measured.
pub fn policy_table(file: &PolicyFile, lines: &[SizeLine]) -> String {
    let number = |v: Option<f64>| v.map_or("-".into(), ::report::significant);
    let mut rows = Vec::new();
    for line in lines {
        for (arm, found) in file.arms.iter().zip(&line.arms).filter(|(_, found)| found.readings > 0) {
            let said = found.failure.as_ref().or(found.verdict.as_ref());
            rows.push(vec![
                topology::Bytes(line.size_bytes).to_string(),
                arm.clone(),
                if *arm == line.use_arm { "use" } else { "" }.into(),
                number(found.median_us),
                number(found.iqr_us),
                found.readings.to_string(),
                said.map_or(String::new(), |s| ::report::one_line(s, 200)),
            ]);
        }
    }
    let mut t = table(&["size", "arm", "", "median us", "IQR us", "readings", "gates"], 3..6);
    t.add_rows(rows);
    let mut out = text_of(&t).trim_end().to_owned();
    for (i, arm) in file.arms.iter().enumerate().filter(|(i, _)| lines.iter().all(|l| l.arms[*i].readings == 0)) {
        let why = lines.iter().find_map(|l| l.arms[i].failure.as_deref()).unwrap_or("never run");
        out += &format!("\nunavailable: {arm}: {}", ::report::one_line(why, 200));
    }
    out
}
