//! Any request, any answer: what a server or a binding speaks.

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
    /// Which GPUs should a job get? With `commit` it gets them.
    Place(Box<PlaceRequest>),
    /// Give named GPUs to a job.
    Allocate(AllocateRequest),
    /// Take the GPUs of jobs back.
    Release(ReleaseRequest),
    /// Give GPUs no more work.
    Drain(DrainRequest),
    /// Give drained GPUs back.
    Undrain(UndrainRequest),
    /// What a job got.
    Observe(ObserveRequest),
    /// Teach the model stored readings.
    Learn(LearnRequest),
    /// Fit a model to all readings.
    Fit(FitRequest),
    /// Look for defects.
    Diagnose(DiagnoseRequest),
    /// What is expected of given GPUs?
    Explain(ExplainRequest),
    /// Which readings are there?
    Readings(ReadingsRequest),
    /// Replace the bandwidth of a reading.
    Correct(CorrectRequest),
    /// Withdraw a reading.
    Withdraw(WithdrawRequest),
    /// What does the state say?
    Status(StatusRequest),
}

/// An answer, tagged as its request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)] // answers are made once and given on
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
    /// Answers any request. `now_unix_s` is seconds since 1970.
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
