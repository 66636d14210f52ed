//! The networks of the papers, and LinearBW, their baseline.
//!
//! `transformer` is BandPilot's (width 32, 6 layers, 8 heads, feed-forward 128), `transformer-litegd` LiteGD's (3
//! layers, GPU masks), `transformer-naive` the ablation with raw GPU ids, `linear` a linear function. For allocations
//! on one host, all of them return the value of the intra table. Our choices where the papers give none:
//!
//! - Positions: a host's place in the cluster, by sinusoids (published code). Therefore two hosts of a type are not
//!   interchangeable and the network needs readings of both; [`predict::gp`] does not.
//! - Training: normalisation after the residual sum, dropout as in the common encoder layer, gradients shortened to
//!   length 1, a cosine schedule down to 1e-6 (published code). The published code also pools over hosts that are not
//!   chosen; here such hosts have no tokens.
//! - Inputs and targets are logarithms of bandwidths; the published code uses raw values. On H100 the results are
//!   equal; on mixed clusters logarithms are clearly better (facts: placement-prototype, section 2).
//!   [`Training::logarithm`] selects one of the two.
//! - Counts are scaled like the other inputs; the published code does not scale them.
//! - A single GPU of a host has the best bandwidth of its host type as input, because no link inside the host limits
//!   it.
//! - Keys and the pooling query have no bias, because a softmax would ignore it.
//! - Elastic weight consolidation uses the Fisher information of one reading with the noise measured on the validation
//!   part, averaged over the readings so far. The published code's estimate is the square of the loss's gradient, which
//!   vanishes where the network is right; with its lambda of 2 the penalty has almost no effect. Even with our
//!   estimate, a diagonal protects a Transformer only in part: see the test
//!   `old_knowledge_survives_a_drift_that_plain_training_forgets_it_in`, which also covers LiteGD's replay.
//! - With several message sizes, each size has its own network.

pub mod kinds;
pub mod layers;
pub mod learned;
pub mod linear;
pub mod real;
mod saved;
pub mod shape;
pub mod token_network;
pub mod tokens;
pub mod train;

pub use learned::{CONTINUAL, Guard, LearnedNetwork, LearningTarget};
pub use shape::NetworkShape;
pub use token_network::{Tape, TokenNetwork, TokenSets};
pub use tokens::Flavour;
pub use train::{Training, TrainingProgress};
