//! The networks of the papers, and LinearBW, their baseline.
//!
//! `transformer` is BandPilot's (width 32, 6 layers, 8 heads, feed-forward 128), `transformer-litegd` LiteGD's (3 layers, GPU masks),
//! `transformer-naive` the ablation with raw GPU ids, `linear` a line. Allocations on one host bypass all of them and read the intra
//! table. Choices that the papers leave open:
//!
//! - Positions: a host's place in the cluster, by sinusoids (published code). Therefore two hosts of a type are not interchangeable and
//!   the network needs readings of both; [`predict::gp`] does not.
//! - Normalisation after the residual sum, dropout as in the common encoder layer, gradients shortened to length 1, a cosine down to
//!   1e-6 (published code). The published code also pools over hosts that are not chosen; here those have no tokens.
//! - Inputs and targets are logarithms of bandwidths; the published code uses raw values. On H100 there is no difference, on mixed clusters
//!   logarithms are clearly better (facts: placement-prototype, section 2). [`Training::logarithm`] switches.
//! - Counts are scaled like everything else; the published code takes them as they are.
//! - One GPU of a host is read as the best bandwidth of its host type, since nothing inside the host limits it.
//! - Keys and the pooling query have no bias, which a softmax would ignore.
//! - Elastic weight consolidation: the Fisher information of one reading with the noise that the validation part shows, averaged over the
//!   readings so far. With the published code's own estimate (squares of the loss's gradient, which vanish where the network is right)
//!   and its lambda of 2 the penalty holds nothing. Even so a diagonal holds a Transformer only in part: see the test
//!   `old_knowledge_survives_a_drift_that_plain_training_forgets_it_in`, and LiteGD's replay beside it.
//! - Several sizes: a network each.

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
