//! The networks of the papers, and LinearBW: what they are compared with.
//!
//! `transformer` is BandPilot's (width 32, 6 layers, 8 heads, feed-forward 128), `transformer-litegd` LiteGD's (3 layers, GPU masks),
//! `transformer-naive` the ablation that sees raw GPU ids, `linear` a line. What is on one host bypasses all of them and reads the intra
//! table. Where the papers leave freedom:
//!
//! - Positions: a host's place in the cluster, by sinusoids (published code). So two hosts of a type are not interchangeable to the
//!   network, and it has to see both; [`crate::gp`] needs not.
//! - Normalisation after the residual sum, dropout as in the common encoder layer, gradients shortened to length 1, a cosine down to
//!   1e-6 (published code). The published code pools over hosts that are not chosen, too; here they are no tokens at all.
//! - Logarithms of bandwidths: the papers do not say. On mixed clusters they are clearly better ([`Training::logarithm`]).
//! - One GPU of a host: read as the best bandwidth of its host type, since nothing inside the host limits it.
//! - Fifth of the samples for early stopping; the Fisher information is that of the scaled prediction.
//! - Several sizes: a network each.

pub mod layers;
pub mod learned;
pub mod linear;
pub mod network;
pub mod real;
mod saved;
pub mod shape;
pub mod tokens;
pub mod train;

pub use learned::{CONTINUAL, Guard, Learned, What};
pub use network::{Network, Sets, Tape};
pub(crate) use saved::SavedLearned;
pub use shape::Shape;
pub use tokens::Flavour;
pub use train::{Progress, Training};
