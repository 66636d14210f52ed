//! The Transformer encoder over sets of tokens: one forward pass for training and prediction, and its backward pass.
//!
//! Post-norm layers with ReLU as in the published code of BandPilot; attention pooling; a head of three layers.

use super::layers::{
    Affine, Attention, Dropout, Pooling, bias_backward, layer_norm, layer_norm_backward, linear, linear_input_backward,
    linear_weights_backward, relu, relu_backward, scale, sized,
};
use super::real::Real;
use super::shape::{Embedding, InHead, InLayer, InitialValues, NetworkShape, ParameterGroup};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Tokens of many sets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenSets<R> {
    /// Features of all tokens, as rows of [`NetworkShape::features`].
    pub tokens: Vec<R>,
    /// Position of every token: the place of its host in the cluster.
    pub positions: Vec<u32>,
    /// End of each set, in tokens.
    pub ends: Vec<u32>,
    /// The (scaled) total count of each set, appended to its pooled token.
    pub totals: Vec<R>,
}

impl<R> TokenSets<R> {
    /// Number of sets.
    pub fn len(&self) -> usize {
        self.ends.len()
    }
    /// True if there are no sets.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
    /// Removes all sets and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.ends.clear();
        self.totals.clear();
    }
}

/// A network and its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenNetwork<R> {
    /// Its sizes.
    pub shape: NetworkShape,
    /// All parameters, one group after the other.
    pub parameters: Vec<R>,
    groups: Vec<ParameterGroup>,
}

/// Intermediate values that a forward pass keeps for the backward pass; reused between batches.
#[derive(Clone, Debug, Default)]
pub struct Tape<R> {
    joined: Vec<R>,
    embedded: Vec<R>,
    layers: Vec<LayerTape<R>>,
    /// Output of the last layer.
    x: Vec<R>,
    pooling: Vec<R>,
    pooled: Vec<R>,
    hidden1: Vec<R>,
    mask1: Vec<R>,
    hidden2: Vec<R>,
    /// One prediction per set.
    pub out: Vec<R>,
    scratch: [Vec<R>; 4],
}

#[derive(Clone, Debug, Default)]
struct LayerTape<R> {
    x: Vec<R>,
    qkv: Vec<R>,
    weights: Vec<R>,
    weights_mask: Vec<R>,
    mixed: Vec<R>,
    mask1: Vec<R>,
    hat1: Vec<R>,
    inverse1: Vec<R>,
    y: Vec<R>,
    up: Vec<R>,
    up_mask: Vec<R>,
    mask2: Vec<R>,
    hat2: Vec<R>,
    inverse2: Vec<R>,
}

/// Adds the sinusoids of a position to a token, as in "Attention is all you need".
fn add_position<R: Real>(token: &mut [R], position: u32) {
    let width = token.len() as f64;
    for (i, pair) in token.chunks_exact_mut(2).enumerate() {
        let angle = f64::from(position) * (-(2.0 * i as f64) / width * 10_000f64.ln()).exp();
        pair[0] += R::of(angle.sin());
        pair[1] += R::of(angle.cos());
    }
}

impl<R: Real> TokenNetwork<R> {
    /// A network with random initial values.
    pub fn new(shape: NetworkShape, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let groups = shape.groups();
        let mut parameters = Vec::new();
        for g in &groups {
            parameters.extend(g.range.clone().map(|_| match g.start {
                InitialValues::Constant(v) => R::of(v),
                InitialValues::Uniform(a) => R::of(a * (f64::from(rng.next_u32()) / f64::from(u32::MAX) * 2.0 - 1.0)),
            }));
        }
        TokenNetwork { shape, parameters, groups }
    }
    /// A network with the given parameters; None if their number is wrong.
    pub fn with(shape: NetworkShape, parameters: Vec<R>) -> Option<Self> {
        let groups = shape.groups();
        let wanted = groups.last().map_or(0, |g| g.range.end);
        (parameters.len() == wanted).then_some(TokenNetwork { shape, parameters, groups })
    }
    /// The position of each group of parameters.
    pub fn groups(&self) -> &[ParameterGroup] {
        &self.groups
    }
    fn group(&self, g: usize) -> &[R] {
        &self.parameters[self.groups[g].range.clone()]
    }
    fn layer(&self, l: usize, g: InLayer) -> &[R] {
        self.group(self.shape.in_layer(l, g))
    }
    fn head(&self, g: InHead) -> &[R] {
        self.group(self.shape.in_head(g))
    }

    /// Computes one prediction per set, in `tape.out`. With `dropout` the pass is for training and `tape` keeps the
    /// values of every layer. Without it all layers share one set of buffers; the arithmetic is the same.
    /// O(tokens x parameters + tokens² per set).
    pub fn forward(&self, sets: &TokenSets<R>, mut dropout: Option<Dropout>, keep: bool, tape: &mut Tape<R>) {
        let (s, t, w) = (&self.shape, sets.positions.len(), self.shape.width);
        self.embed(sets, tape);
        tape.layers.resize_with(if keep { s.layers } else { 1 }, LayerTape::default);
        let mut x = std::mem::take(&mut tape.x);
        for l in 0..s.layers {
            let into = &mut tape.layers[if keep { l } else { 0 }];
            self.encode(l, sets, &mut dropout, &mut x, into, &mut tape.scratch[0]);
        }
        let [a, b, c] = s.head();
        let n = sets.len();
        let pooled = sized(&mut tape.pooled, n * a);
        let pooling = Pooling { query: self.head(InHead::Query), ends: &sets.ends, stride: a };
        pooling.forward(&x, sized(&mut tape.pooling, t), pooled);
        if s.total {
            for (row, total) in pooled.chunks_exact_mut(a).zip(&sets.totals) {
                row[w] = *total;
            }
        }
        tape.x = x;
        let h = sized(&mut tape.hidden1, n * b);
        linear(pooled, self.head(InHead::First), self.head(InHead::FirstBias), (n, a, b), h);
        relu(h);
        drop_out(&mut dropout, h, &mut tape.mask1);
        let h2 = sized(&mut tape.hidden2, n * c);
        linear(h, self.head(InHead::Second), self.head(InHead::SecondBias), (n, b, c), h2);
        relu(h2);
        linear(h2, self.head(InHead::Third), self.head(InHead::ThirdBias), (n, c, 1), sized(&mut tape.out, n));
    }

    fn embed(&self, sets: &TokenSets<R>, tape: &mut Tape<R>) {
        let (t, w) = (sets.positions.len(), self.shape.width);
        let x = sized(&mut tape.embedded, t * w);
        match self.shape.embedding {
            Embedding::Flat { features } => {
                linear(&sets.tokens, self.group(0), self.group(1), (t, features, w), x);
            }
            Embedding::Branches { count_width: c } => {
                let joined = sized(&mut tape.joined, t * (w + c));
                for (row, token) in joined.chunks_exact_mut(w + c).zip(sets.tokens.chunks_exact(2)) {
                    let (bandwidth, count) = row.split_at_mut(w);
                    for (out, feature, g) in [(bandwidth, token[0], 0), (count, token[1], 2)] {
                        for ((o, k), b) in out.iter_mut().zip(self.group(g)).zip(self.group(g + 1)) {
                            *o = feature * *k + *b;
                        }
                    }
                }
                linear(joined, self.group(4), self.group(5), (t, w + c, w), x);
                relu(x);
            }
        }
        let root = R::of((w as f64).sqrt());
        tape.x.clear();
        tape.x.extend(x.iter().map(|v| *v * root));
        for (row, position) in tape.x.chunks_exact_mut(w).zip(&sets.positions) {
            add_position(row, *position);
        }
    }

    /// One encoder layer: replaces `x` by its output and moves the old `x` to the tape.
    fn encode(
        &self,
        l: usize,
        sets: &TokenSets<R>,
        dropout: &mut Option<Dropout>,
        x: &mut Vec<R>,
        tape: &mut LayerTape<R>,
        scratch: &mut Vec<R>,
    ) {
        let (t, w, f, heads) = (sets.positions.len(), self.shape.width, self.shape.feed_forward, self.shape.heads);
        let p = |g| self.layer(l, g);
        let mut bias = vec![R::zero(); 3 * w];
        bias[..w].copy_from_slice(p(InLayer::QueryBias));
        bias[2 * w..].copy_from_slice(p(InLayer::ValueBias));
        std::mem::swap(x, &mut tape.x);
        let qkv = sized(&mut tape.qkv, t * 3 * w);
        linear(&tape.x, p(InLayer::Qkv), &bias, (t, w, 3 * w), qkv);
        let attention = Attention { ends: &sets.ends, width: w, heads };
        let weights = sized(&mut tape.weights, attention.weight_count());
        attention.weights(qkv, weights);
        let mixed = sized(&mut tape.mixed, t * w);
        match dropout {
            None => {
                tape.weights_mask.clear();
                attention.mix(qkv, weights, mixed);
            }
            Some(d) => {
                let dropped = sized(scratch, weights.len());
                dropped.copy_from_slice(weights);
                d.apply(dropped, &mut tape.weights_mask);
                attention.mix(qkv, dropped, mixed);
            }
        }
        let a = sized(scratch, t * w);
        linear(mixed, p(InLayer::Out), p(InLayer::OutBias), (t, w, w), a);
        drop_out(dropout, a, &mut tape.mask1);
        add(a, &tape.x);
        let y = sized(&mut tape.y, t * w);
        let (hat, inverse) = (sized(&mut tape.hat1, t * w), sized(&mut tape.inverse1, t));
        layer_norm(a, Affine { gain: p(InLayer::Gain1), bias: p(InLayer::Bias1) }, y, hat, inverse);
        let up = sized(&mut tape.up, t * f);
        linear(y, p(InLayer::Up), p(InLayer::UpBias), (t, w, f), up);
        relu(up);
        drop_out(dropout, up, &mut tape.up_mask);
        linear(up, p(InLayer::Down), p(InLayer::DownBias), (t, f, w), a);
        drop_out(dropout, a, &mut tape.mask2);
        add(a, y);
        let (hat, inverse) = (sized(&mut tape.hat2, t * w), sized(&mut tape.inverse2, t));
        layer_norm(a, Affine { gain: p(InLayer::Gain2), bias: p(InLayer::Bias2) }, sized(x, t * w), hat, inverse);
    }

    /// Adds the gradients of all parameters to `gradient`, given the gradients of the outputs of the last forward pass.
    /// That pass must have been one for training.
    pub fn backward(&self, sets: &TokenSets<R>, tape: &mut Tape<R>, dout: &[R], gradient: &mut [R]) {
        let (s, t, w) = (&self.shape, sets.positions.len(), self.shape.width);
        let [a, b, c] = s.head();
        let n = sets.len();
        let mut grad = Gradient { groups: &self.groups, all: gradient };
        let [dx, dy, dbig, dqkv] = &mut tape.scratch;

        let at = |g| s.in_head(g);
        linear_weights_backward(&tape.hidden2, dout, (n, c, 1), grad.of(at(InHead::Third)));
        bias_backward(dout, grad.of(at(InHead::ThirdBias)));
        let d2 = sized(dy, n * c);
        linear_input_backward(self.head(InHead::Third), dout, (n, c, 1), R::zero(), d2);
        relu_backward(&tape.hidden2, d2);
        linear_weights_backward(&tape.hidden1, d2, (n, b, c), grad.of(at(InHead::Second)));
        bias_backward(d2, grad.of(at(InHead::SecondBias)));
        let d1 = sized(dbig, n * b);
        linear_input_backward(self.head(InHead::Second), d2, (n, b, c), R::zero(), d1);
        scale(d1, &tape.mask1);
        relu_backward(&tape.hidden1, d1);
        linear_weights_backward(&tape.pooled, d1, (n, a, b), grad.of(at(InHead::First)));
        bias_backward(d1, grad.of(at(InHead::FirstBias)));
        let dpooled = sized(dy, n * a);
        linear_input_backward(self.head(InHead::First), d1, (n, a, b), R::zero(), dpooled);
        let dquery = grad.of(at(InHead::Query));
        let query = self.head(InHead::Query);
        let pooling = Pooling { query, ends: &sets.ends, stride: a };
        pooling.backward(&tape.x, &tape.pooling, dpooled, sized(dx, t * w), dquery);

        for l in (0..s.layers).rev() {
            self.encode_backward(l, sets, &tape.layers[l], [dx, dy, dbig, dqkv], &mut grad);
        }

        let root = R::of((w as f64).sqrt());
        for d in dx.iter_mut() {
            *d *= root;
        }
        match s.embedding {
            Embedding::Flat { features } => {
                linear_weights_backward(&sets.tokens, dx, (t, features, w), grad.of(0));
                bias_backward(dx, grad.of(1));
            }
            Embedding::Branches { count_width: c } => {
                relu_backward(&tape.embedded, dx);
                linear_weights_backward(&tape.joined, dx, (t, w + c, w), grad.of(4));
                bias_backward(dx, grad.of(5));
                let djoined = sized(dbig, t * (w + c));
                linear_input_backward(self.group(4), dx, (t, w + c, w), R::zero(), djoined);
                for (row, token) in djoined.chunks_exact(w + c).zip(sets.tokens.chunks_exact(2)) {
                    let (bandwidth, count) = row.split_at(w);
                    for (d, feature, g) in [(bandwidth, token[0], 0), (count, token[1], 2)] {
                        grad.of(g).iter_mut().zip(d).for_each(|(k, d)| *k += *d * feature);
                        add(grad.of(g + 1), d);
                    }
                }
            }
        }
    }

    /// On entry `dx` holds the gradient of the layer's output, on return that of its input.
    fn encode_backward(
        &self,
        l: usize,
        sets: &TokenSets<R>,
        tape: &LayerTape<R>,
        [dx, dy, dbig, dqkv]: [&mut Vec<R>; 4],
        grad: &mut Gradient<R>,
    ) {
        let (t, w, f, heads) = (sets.positions.len(), self.shape.width, self.shape.feed_forward, self.shape.heads);
        let p = |g| self.layer(l, g);
        let at = |g| self.shape.in_layer(l, g);
        let one = R::one();
        // Second norm and feed-forward. `ds` is the gradient of the sum before the norm: it flows to `y` directly and
        // through both layers.
        let ds = sized(dy, t * w);
        let affine = grad.two(at(InLayer::Gain2), at(InLayer::Bias2));
        layer_norm_backward(dx, (&tape.hat2, &tape.inverse2), p(InLayer::Gain2), ds, affine);
        dx.copy_from_slice(ds);
        scale(ds, &tape.mask2);
        linear_weights_backward(&tape.up, ds, (t, f, w), grad.of(at(InLayer::Down)));
        bias_backward(ds, grad.of(at(InLayer::DownBias)));
        let dup = sized(dbig, t * f);
        linear_input_backward(p(InLayer::Down), ds, (t, f, w), R::zero(), dup);
        scale(dup, &tape.up_mask);
        relu_backward(&tape.up, dup);
        linear_weights_backward(&tape.y, dup, (t, w, f), grad.of(at(InLayer::Up)));
        bias_backward(dup, grad.of(at(InLayer::UpBias)));
        linear_input_backward(p(InLayer::Up), dup, (t, w, f), one, dx);
        // First norm and attention.
        let affine = grad.two(at(InLayer::Gain1), at(InLayer::Bias1));
        layer_norm_backward(dx, (&tape.hat1, &tape.inverse1), p(InLayer::Gain1), ds, affine);
        dx.copy_from_slice(ds);
        scale(ds, &tape.mask1);
        linear_weights_backward(&tape.mixed, ds, (t, w, w), grad.of(at(InLayer::Out)));
        bias_backward(ds, grad.of(at(InLayer::OutBias)));
        let dmixed = sized(dbig, t * w);
        linear_input_backward(p(InLayer::Out), ds, (t, w, w), R::zero(), dmixed);
        let d = sized(dqkv, t * 3 * w);
        Attention { ends: &sets.ends, width: w, heads }.backward(
            &tape.qkv,
            &tape.weights,
            &tape.weights_mask,
            dmixed,
            d,
        );
        linear_weights_backward(&tape.x, d, (t, w, 3 * w), grad.of(at(InLayer::Qkv)));
        for row in d.chunks_exact(3 * w) {
            add(grad.of(at(InLayer::QueryBias)), &row[..w]);
            add(grad.of(at(InLayer::ValueBias)), &row[2 * w..]);
        }
        linear_input_backward(p(InLayer::Qkv), d, (t, w, 3 * w), one, dx);
    }
}

fn drop_out<R: Real>(dropout: &mut Option<Dropout>, x: &mut [R], mask: &mut Vec<R>) {
    match dropout {
        Some(d) => d.apply(x, mask),
        None => mask.clear(),
    }
}

fn add<R: Real>(to: &mut [R], what: &[R]) {
    for (t, v) in to.iter_mut().zip(what) {
        *t += *v;
    }
}

/// Gradients by group.
struct Gradient<'g, R> {
    groups: &'g [ParameterGroup],
    all: &'g mut [R],
}

impl<R> Gradient<'_, R> {
    fn of(&mut self, g: usize) -> &mut [R] {
        &mut self.all[self.groups[g].range.clone()]
    }
    /// Mutable access to two neighbouring groups.
    fn two(&mut self, g: usize, next: usize) -> (&mut [R], &mut [R]) {
        let (a, b) = (self.groups[g].range.clone(), self.groups[next].range.clone());
        debug_assert_eq!(a.end, b.start);
        let (head, tail) = self.all[a.start..b.end].split_at_mut(a.len());
        (head, tail)
    }
}
