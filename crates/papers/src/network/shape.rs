//! The shape of a network: its sizes, and the position of each group of parameters.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The input layer for the features of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Embedding {
    /// BandPilot: a linear layer each for bandwidth and count, concatenated, projected, ReLU.
    Branches {
        /// Width of the count's layer.
        count_width: usize,
    },
    /// One linear layer over all features.
    Flat {
        /// Number of features.
        features: usize,
    },
}

/// Sizes of a network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkShape {
    /// The input layer for tokens.
    pub embedding: Embedding,
    /// Width of a token.
    pub width: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// Width of the feed-forward part.
    pub feed_forward: usize,
    /// Share of values that dropout removes in training.
    pub dropout: f64,
    /// True if the total GPU count is appended to the pooled token.
    pub total: bool,
}

/// BandPilot's published network.
pub const BANDPILOT: NetworkShape = NetworkShape {
    embedding: Embedding::Branches { count_width: 8 },
    width: 32,
    layers: 6,
    heads: 8,
    feed_forward: 128,
    dropout: 0.05,
    total: true,
};

/// Maximum sizes that are accepted from a file.
const WIDTH_MAX: usize = 256;
const LAYERS_MAX: usize = 24;
const FEED_FORWARD_MAX: usize = 2048;
const FEATURES_MAX: usize = 64;

/// Groups of parameters of one encoder layer, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InLayer {
    Qkv,
    QueryBias,
    ValueBias,
    Out,
    OutBias,
    Gain1,
    Bias1,
    Up,
    UpBias,
    Down,
    DownBias,
    Gain2,
    Bias2,
}
const IN_LAYER: usize = 13;

/// Groups of the head, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InHead {
    Query,
    First,
    FirstBias,
    Second,
    SecondBias,
    Third,
    ThirdBias,
}
const IN_HEAD: usize = 7;

/// One group of parameters: a matrix of `inputs x outputs` (biases have one row).
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGroup {
    /// Name in messages: `layer 2: query bias`.
    pub name: String,
    /// Position in the vector of all parameters.
    pub range: Range<usize>,
    /// Number of rows. An output of this group sums over this number of inputs, which sets the scale of its initial
    /// values.
    pub inputs: usize,
    /// Number of columns.
    pub outputs: usize,
    /// The kind of its initial values.
    pub start: InitialValues,
}

/// Initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InitialValues {
    /// Uniform between minus and plus this value.
    Uniform(f64),
    /// All equal to this value.
    Constant(f64),
}

impl NetworkShape {
    /// Number of features of a token.
    pub fn features(&self) -> usize {
        match self.embedding {
            Embedding::Branches { .. } => 2,
            Embedding::Flat { features } => features,
        }
    }
    /// Widths of the head's layers: the pooled token (with the total), then two hidden layers, then 1.
    pub fn head(&self) -> [usize; 3] {
        [self.width + usize::from(self.total), self.width / 2, self.width / 4]
    }
    fn embedding_groups(&self) -> usize {
        match self.embedding {
            Embedding::Branches { .. } => 6,
            Embedding::Flat { .. } => 2,
        }
    }

    /// True if a network of this shape can be built.
    pub fn check(&self) -> Result<(), String> {
        let features_fine = match self.embedding {
            Embedding::Branches { count_width } => (1..=FEATURES_MAX).contains(&count_width),
            Embedding::Flat { features } => (1..=FEATURES_MAX).contains(&features),
        };
        let fine = features_fine
            && (4..=WIDTH_MAX).contains(&self.width)
            && (1..=self.width).contains(&self.heads)
            && self.width.is_multiple_of(self.heads)
            && self.width.is_multiple_of(2)
            && (1..=LAYERS_MAX).contains(&self.layers)
            && (1..=FEED_FORWARD_MAX).contains(&self.feed_forward)
            && (0.0..0.9).contains(&self.dropout);
        if fine { Ok(()) } else { Err(format!("a network of this shape is not supported: {self:?}")) }
    }

    /// All groups, in the order of the vector of parameters.
    ///
    /// Keys and the pooling query have no bias: a softmax ignores such a bias, so its gradient would always be 0.
    pub fn groups(&self) -> Vec<ParameterGroup> {
        let mut groups: Vec<ParameterGroup> = Vec::new();
        let mut at = 0;
        let mut add = |name: String, inputs: usize, outputs: usize, start: InitialValues| {
            groups.push(ParameterGroup { name, range: at..at + inputs * outputs, inputs, outputs, start });
            at += inputs * outputs;
        };
        // The initial values are those of the common frameworks: uniform within one over the root of the number of
        // inputs.
        let uniform = |inputs: usize| InitialValues::Uniform(1.0 / (inputs as f64).sqrt());
        let (w, zero, one) = (self.width, InitialValues::Constant(0.0), InitialValues::Constant(1.0));
        match self.embedding {
            Embedding::Branches { count_width: c } => {
                add("bandwidth".into(), 1, w, uniform(1));
                add("bandwidth bias".into(), 1, w, uniform(1));
                add("count".into(), 1, c, uniform(1));
                add("count bias".into(), 1, c, uniform(1));
                add("projection".into(), w + c, w, uniform(w + c));
                add("projection bias".into(), 1, w, uniform(w + c));
            }
            Embedding::Flat { features } => {
                add("embedding".into(), features, w, uniform(features));
                add("embedding bias".into(), 1, w, uniform(features));
            }
        }
        for l in 0..self.layers {
            let f = self.feed_forward;
            let name = |what: &str| format!("layer {l}: {what}");
            // Glorot: queries, keys and values are one matrix.
            add(name("queries, keys and values"), w, 3 * w, InitialValues::Uniform((6.0 / (4 * w) as f64).sqrt()));
            add(name("query bias"), 1, w, zero);
            add(name("value bias"), 1, w, zero);
            add(name("output"), w, w, uniform(w));
            add(name("output bias"), 1, w, zero);
            add(name("gain 1"), 1, w, one);
            add(name("bias 1"), 1, w, zero);
            add(name("up"), w, f, uniform(w));
            add(name("up bias"), 1, f, uniform(w));
            add(name("down"), f, w, uniform(f));
            add(name("down bias"), 1, w, uniform(f));
            add(name("gain 2"), 1, w, one);
            add(name("bias 2"), 1, w, zero);
        }
        let [a, b, c] = self.head();
        add("pooling query".into(), w, 1, uniform(w));
        add("head 1".into(), a, b, uniform(a));
        add("head 1 bias".into(), 1, b, uniform(a));
        add("head 2".into(), b, c, uniform(b));
        add("head 2 bias".into(), 1, c, uniform(b));
        add("head 3".into(), c, 1, uniform(c));
        add("head 3 bias".into(), 1, 1, uniform(c));
        debug_assert_eq!(groups.len(), self.embedding_groups() + IN_LAYER * self.layers + IN_HEAD);
        groups
    }

    pub(crate) fn in_layer(&self, layer: usize, group: InLayer) -> usize {
        self.embedding_groups() + layer * IN_LAYER + group as usize
    }
    pub(crate) fn in_head(&self, group: InHead) -> usize {
        self.embedding_groups() + self.layers * IN_LAYER + group as usize
    }
}
