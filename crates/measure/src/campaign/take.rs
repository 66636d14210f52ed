//! Takes readings: batches of points go to the backend, their readings to the store.

use super::outcome::Stop;
use super::{Campaign, CampaignError, CampaignEvent, FAILURES_IN_ROW_MAX, Stage};
use crate::backend::{BackendError, Point, Reading};
use store::{Measurement, Record};

impl Campaign<'_> {
    /// Measures the points without a reading, in batches on different hosts. Each batch is stored before the next begins.
    pub(super) fn take(&mut self, stage: Stage, name: &str, points: &[Point]) -> Result<(), Stop> {
        let missing: Vec<&Point> = points.iter().filter(|p| self.value(p).is_none()).collect();
        let already = points.len() - missing.len();
        (self.hooks.on_event)(CampaignEvent::Stage { name: name.into(), points: missing.len(), already });
        if points.first().is_some_and(|p| p.repetition == 0) {
            self.summary.stages[stage as usize].points += already;
        }
        for batch in batches(&missing, self.backend.width()) {
            self.take_batch(stage, &batch)?;
        }
        Ok(())
    }

    fn take_batch(&mut self, stage: Stage, batch: &[Point]) -> Result<(), Stop> {
        let cost: f64 = batch.iter().map(|p| self.backend.expected(p).0 * p.allocation.gpu_count() as f64 / 60.0).sum();
        if self.plan.budget_gpu_minutes.is_some_and(|b| self.summary.gpu_minutes() + cost > b + 1e-9) {
            return Err(Stop::Budget);
        }
        let results = self.backend.measure_batch(batch);
        let mut records = Vec::new();
        let mut fatal = None;
        for (p, result) in batch.iter().zip(results) {
            match result {
                Ok(reading) => {
                    let took = reading.took.0;
                    let record = self.record(p, reading);
                    match record.measurement.check() {
                        Ok(()) => {
                            self.count_reading(stage, p, took);
                            records.push(record);
                        }
                        Err(why) => fatal = self.count_failure(stage, p, &why).or(fatal),
                    }
                }
                Err(BackendError::Point(why)) => fatal = self.count_failure(stage, p, &why).or(fatal),
                Err(BackendError::Fatal(why)) => fatal = Some(why),
            }
        }
        self.store.insert_batch(&records)?;
        for r in &records {
            self.known.extend(r.run_id.clone().map(|id| (id, r.measurement.busbw.gb_per_s())));
        }
        (self.hooks.on_event)(CampaignEvent::Taken(batch.len()));
        fatal.map_or(Ok(()), |why| Err(Stop::Error(CampaignError::Backend(why))))
    }

    fn count_reading(&mut self, stage: Stage, p: &Point, took_s: f64) {
        self.failures_in_row = 0;
        let s = &mut self.summary.stages[stage as usize];
        s.readings_taken += 1;
        s.points += usize::from(p.repetition == 0);
        s.run_seconds += took_s;
        s.gpu_minutes += took_s * p.allocation.gpu_count() as f64 / 60.0;
    }

    /// Reports the failure of a point. Returns a reason to stop after too many failures in a row.
    fn count_failure(&mut self, stage: Stage, p: &Point, why: &str) -> Option<String> {
        self.failures_in_row += 1;
        self.summary.stages[stage as usize].failed += usize::from(p.repetition == 0);
        let gpus = self.cluster.gpu_list(&p.allocation);
        (self.hooks.on_event)(CampaignEvent::Note(format!(
            "no reading for {gpus}, {} {}: {why}",
            p.collective, p.size
        )));
        (self.failures_in_row >= FAILURES_IN_ROW_MAX)
            .then(|| format!("{FAILURES_IN_ROW_MAX} points failed in a row, the last with: {why}"))
    }

    fn record(&self, p: &Point, r: Reading) -> Record {
        let mut m = Measurement::new(p.allocation.clone(), p.collective, p.size, r.busbw, self.backend.source());
        m.time = r.time;
        m.algorithm = r.algorithm;
        m.protocol = r.protocol;
        m.channels = r.channels;
        m.nccl_version = r.nccl_version;
        m.taken_at_unix_s = Some((self.hooks.now_unix_s)());
        m.provenance = self.backend.provenance();
        Record { run_id: Some(self.run_id(p)), measurement: m }
    }
}

/// Splits consecutive points into batches of at most `width` points on different hosts. A multi-host point forms a
/// batch alone, because other points would share its network.
fn batches(points: &[&Point], width: usize) -> Vec<Vec<Point>> {
    let mut out: Vec<Vec<Point>> = Vec::new();
    for p in points {
        let fits = |b: &Vec<Point>| {
            b.len() < width
                && p.allocation.host_count() == 1
                && b.iter()
                    .all(|q| q.allocation.host_count() == 1 && q.allocation.parts()[0].0 != p.allocation.parts()[0].0)
        };
        match out.last_mut() {
            Some(b) if fits(b) => b.push((*p).clone()),
            _ => out.push(vec![(*p).clone()]),
        }
    }
    out
}
