//! One type for all requests and one for all answers, for servers and language bindings.

use crate::error::EngineError;
use crate::hold::Engine;
use crate::{
    AllocateAnswer, AllocateRequest, CorrectRequest, DiagnoseAnswer, DiagnoseRequest, DrainAnswer, DrainRequest,
    ExplainAnswer, ExplainRequest, FitAnswer, FitRequest, LearnAnswer, LearnRequest, ObserveAnswer, ObserveRequest,
    PlaceAnswer, PlaceRequest, ReadingChangeAnswer, ReadingsAnswer, ReadingsRequest, ReleaseAnswer, ReleaseRequest,
    StatusAnswer, StatusRequest, UndrainAnswer, UndrainRequest, WithdrawRequest,
};
use serde::{Deserialize, Serialize};

/// A request: `{"request": "place", "gpus": 8}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// An answer, with the same tag as its request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
}

impl Engine {
    /// Answers any request. `now_unix_s` is the present time, seconds since 1970.
    pub fn handle(&self, request: &Request, now_unix_s: f64) -> Result<Answer, EngineError> {
        Ok(match request {
            Request::Place(r) => Answer::Place(self.place_request(r, now_unix_s)?),
            Request::Allocate(r) => Answer::Allocate(self.allocate(r, now_unix_s)?),
            Request::Release(r) => Answer::Release(self.release(r, now_unix_s)?),
            Request::Drain(r) => Answer::Drain(self.drain(r, now_unix_s)?),
            Request::Undrain(r) => Answer::Undrain(self.undrain(r, now_unix_s)?),
            Request::Observe(r) => Answer::Observe(self.observe(r, now_unix_s)?),
            Request::Learn(r) => Answer::Learn(self.learn(r, now_unix_s)?),
            Request::Fit(r) => Answer::Fit(self.fit(r)?),
            Request::Diagnose(r) => Answer::Diagnose(self.diagnose(r)?),
            Request::Explain(r) => Answer::Explain(self.explain(r)?),
            Request::Readings(r) => Answer::Readings(self.readings(r)?),
            Request::Correct(r) => Answer::Correct(self.correct(r, now_unix_s)?),
            Request::Withdraw(r) => Answer::Withdraw(self.withdraw(r, now_unix_s)?),
            Request::Status(StatusRequest {}) => Answer::Status(self.status()?),
        })
    }
}
