//! `linkwise measure` on a simulated site.

use measure::{Backend, BackendError, Campaign, CampaignHooks, CampaignPlan, Point, Reading};
use store::{Source, Store, StoreError};
use topology::{Allocation, Bandwidth, Bytes, Collective, Seconds};
use truths::Truth;
use truths::site::Site;

/// Duration of one run, seconds. It is simulated: no time passes.
const RUN_S: f64 = 4.0;
/// Date of the simulated readings, seconds since 1970.
const AT_UNIX_S: f64 = 1.8e9;

/// A backend that takes readings of a site.
struct SiteBackend<'a>(&'a Site);

impl Backend for SiteBackend<'_> {
    fn source(&self) -> Source {
        Source::Simulated
    }
    fn provenance(&self) -> String {
        format!("simulated site {}", self.0.name())
    }
    fn width(&self) -> usize {
        usize::MAX
    }
    fn expected(&self, _: &Point) -> Seconds {
        Seconds(RUN_S)
    }
    fn measure(&mut self, point: &Point) -> Result<Reading, BackendError> {
        let v = self.0.reading(&point.allocation, point.repetition.into());
        let v = v.ok_or_else(|| BackendError::Point("no GPUs".into()))?;
        Ok(Reading::new(Bandwidth::from_gb_per_s(v), Seconds(RUN_S)))
    }
}

/// Takes the readings that `linkwise measure --samples N` takes: tables of one host per type, spot checks of the
/// others, the design's sample, and repetitions of outliers. Without `intra`, no reading inside a host. Returns the
/// number of readings.
pub fn measure_site(
    site: &Site,
    store: &mut Store,
    samples: usize,
    design: measure::DesignKind,
    intra: bool,
    seed: u64,
) -> Result<usize, String> {
    let plan = CampaignPlan {
        idle: site.cluster().usable(),
        collective: site.collective(),
        sizes: vec![site.size()],
        intra,
        sample_size: samples,
        design,
        seed,
        scale: measure::Scale::of_site(site.cluster(), &site.cluster().usable(), None),
        budget_gpu_minutes: None,
    };
    let fabric = fabric::Fabric::new(site.cluster());
    let expected = |a: &Allocation, c: Collective, s: Bytes| fabric.estimate(a, c, s).busbw.gb_per_s();
    let now = || AT_UNIX_S;
    let mut ignored = |_| {};
    let mut backend = SiteBackend(site);
    let mut model = engine::UncertaintySampler::new(site.cluster(), &[], fabric::Constants::default());
    let hooks = CampaignHooks { expected: &expected, now_unix_s: &now, on_event: &mut ignored };
    let campaign = Campaign::new(&plan, store, &mut backend, hooks);
    let campaign = campaign.map_err(|e: StoreError| e.to_string())?.with_model(&mut model);
    Ok(campaign.run().map_err(|e| e.to_string())?.readings_taken())
}
