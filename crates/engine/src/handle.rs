//! One type for all requests and one for all answers, for servers and language bindings.

use crate::error::EngineError;
use crate::hold::Engine;
use crate::{
    AllocateAnswer, AllocateRequest, CorrectRequest, DiagnoseAnswer, DiagnoseRequest, DrainAnswer, DrainRequest,
    EventsAnswer, EventsRequest, ExplainAnswer, ExplainRequest, FitAnswer, FitRequest, HostsAnswer, HostsRequest,
    JobAnswer, JobRequest, LearnAnswer, LearnRequest, ModelAnswer, ModelRequest, ModelVersion, ObserveAnswer,
    ObserveRequest, PlaceAnswer, PlaceRequest, PromoteRequest, ReadingChangeAnswer, ReadingsAnswer, ReadingsRequest,
    ReleaseAnswer, ReleaseRequest, RenewRequest, StatusAnswer, StatusRequest, UndrainAnswer, UndrainRequest,
    WithdrawRequest,
};
use serde::{Deserialize, Serialize};
use store::By;

/// A request: `{"request": "place", "gpus": 8}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Choose GPUs for a job; with `commit`, allocate them.
    Place(Box<PlaceRequest>),
    /// Allocate named GPUs to a job.
    Allocate(AllocateRequest),
    /// Release the GPUs of jobs.
    Release(ReleaseRequest),
    /// Drain GPUs: no job gets them.
    Drain(DrainRequest),
    /// End the drain of GPUs.
    Undrain(UndrainRequest),
    /// Record the bandwidth that a job achieved.
    Observe(ObserveRequest),
    /// Teach the model stored readings.
    Learn(LearnRequest),
    /// Fit a model to all readings.
    Fit(FitRequest),
    /// Look for slow hardware.
    Diagnose(DiagnoseRequest),
    /// Predict the bandwidth of given GPUs.
    Explain(ExplainRequest),
    /// List readings.
    Readings(ReadingsRequest),
    /// Replace the bandwidth of a reading.
    Correct(CorrectRequest),
    /// Withdraw a reading.
    Withdraw(WithdrawRequest),
    /// Report the state.
    Status(StatusRequest),
    /// Report one job.
    Job(JobRequest),
    /// Start the lease of a job again.
    Renew(RenewRequest),
    /// List the hosts with their GPUs.
    Hosts(HostsRequest),
    /// List changes.
    Events(EventsRequest),
    /// Describe the present model.
    Model(ModelRequest),
    /// Use another version of the model.
    Promote(PromoteRequest),
}

/// An answer, with the same tag as its request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "answer", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)] // an answer is made once and moved
pub enum Answer {
    /// To [`Request::Place`].
    Place(PlaceAnswer),
    /// To [`Request::Allocate`].
    Allocate(AllocateAnswer),
    /// To [`Request::Release`].
    Release(ReleaseAnswer),
    /// To [`Request::Drain`].
    Drain(DrainAnswer),
    /// To [`Request::Undrain`].
    Undrain(UndrainAnswer),
    /// To [`Request::Observe`].
    Observe(ObserveAnswer),
    /// To [`Request::Learn`].
    Learn(LearnAnswer),
    /// To [`Request::Fit`].
    Fit(FitAnswer),
    /// To [`Request::Diagnose`].
    Diagnose(DiagnoseAnswer),
    /// To [`Request::Explain`].
    Explain(ExplainAnswer),
    /// To [`Request::Readings`].
    Readings(ReadingsAnswer),
    /// To [`Request::Correct`].
    Correct(ReadingChangeAnswer),
    /// To [`Request::Withdraw`].
    Withdraw(ReadingChangeAnswer),
    /// To [`Request::Status`].
    Status(StatusAnswer),
    /// To [`Request::Job`].
    Job(JobAnswer),
    /// To [`Request::Renew`].
    Renew(JobAnswer),
    /// To [`Request::Hosts`].
    Hosts(HostsAnswer),
    /// To [`Request::Events`].
    Events(EventsAnswer),
    /// To [`Request::Model`].
    Model(ModelAnswer),
    /// To [`Request::Promote`].
    Promote(ModelVersion),
}

impl Engine {
    /// Answers any request. `by` is the author and the present time; a number is the time of a command, seconds since 1970.
    pub fn handle<'a>(&self, request: &Request, by: impl Into<By<'a>>) -> Result<Answer, EngineError> {
        let by = by.into();
        let now_unix_s = by.at_unix_s;
        let answer = match request {
            Request::Place(r) => Answer::Place(self.place_request(r, by)?),
            Request::Allocate(r) => Answer::Allocate(self.allocate(r, by)?),
            Request::Release(r) => Answer::Release(self.release(r, by)?),
            Request::Drain(r) => Answer::Drain(self.drain(r, by)?),
            Request::Undrain(r) => Answer::Undrain(self.undrain(r, by)?),
            Request::Observe(r) => Answer::Observe(self.observe(r, by)?),
            Request::Learn(r) => Answer::Learn(self.learn(r, now_unix_s)?),
            Request::Fit(r) => Answer::Fit(self.fit(r)?),
            Request::Diagnose(r) => Answer::Diagnose(self.diagnose(r)?),
            Request::Explain(r) => Answer::Explain(self.explain(r)?),
            Request::Readings(r) => Answer::Readings(self.readings(r)?),
            Request::Correct(r) => Answer::Correct(self.correct(r, now_unix_s)?),
            Request::Withdraw(r) => Answer::Withdraw(self.withdraw(r, now_unix_s)?),
            Request::Status(StatusRequest {}) => Answer::Status(self.status()?),
            Request::Job(r) => Answer::Job(self.job(r)?),
            Request::Renew(r) => Answer::Renew(self.renew(r, by)?),
            Request::Hosts(HostsRequest {}) => Answer::Hosts(self.hosts()?),
            Request::Events(r) => Answer::Events(self.events(r)?),
            Request::Model(ModelRequest {}) => Answer::Model(self.model_answer()?),
            Request::Promote(r) => Answer::Promote(self.promote(r, by)?),
        };
        self.log_answer(request, &answer, by)?;
        Ok(answer)
    }
}
