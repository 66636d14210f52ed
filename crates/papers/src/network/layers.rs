//! The layers of the networks, each with its backward pass.
//!
//! Sets of tokens have different lengths: all tokens of all sets are rows of one matrix, and set `s` ends at `ends[s]`.
//! A token attends only to the tokens of its own set. The result equals that of masked, padded batches, without the
//! padding.

use super::real::{Real, add_transposed_product, product, product_transposed};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

/// Constant added to the variance in [`layer_norm`].
const EPSILON: f64 = 1e-5;

/// Token ranges of every set.
pub fn ranges(ends: &[u32]) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    (0..ends.len()).map(|s| if s == 0 { 0..ends[0] as usize } else { ends[s - 1] as usize..ends[s] as usize })
}

/// Resizes a buffer for this batch; its old values are not used.
pub fn sized<R: Real>(buffer: &mut Vec<R>, len: usize) -> &mut [R] {
    buffer.resize(len, R::zero());
    buffer
}

/// `y = x w + b` for `t` rows; `w` is `inputs x outputs`.
pub fn linear<R: Real>(x: &[R], w: &[R], b: &[R], (t, inputs, outputs): (usize, usize, usize), y: &mut [R]) {
    for row in y.chunks_exact_mut(outputs) {
        row.copy_from_slice(b);
    }
    product(x, w, (t, inputs, outputs), R::one(), y);
}

/// Adds the gradients of weights to `dw` and of biases to `db`.
pub fn linear_weights_backward<R: Real>(x: &[R], dy: &[R], (t, inputs, outputs): (usize, usize, usize), dw: &mut [R]) {
    add_transposed_product(x, dy, (t, inputs, outputs), dw);
}

/// Adds the sum of the rows of `dy` to `db`.
pub fn bias_backward<R: Real>(dy: &[R], db: &mut [R]) {
    for row in dy.chunks_exact(db.len()) {
        for (g, d) in db.iter_mut().zip(row) {
            *g += *d;
        }
    }
}

/// `dx = dy wᵀ + beta dx`.
pub fn linear_input_backward<R: Real>(
    w: &[R],
    dy: &[R],
    (t, inputs, outputs): (usize, usize, usize),
    beta: R,
    dx: &mut [R],
) {
    product_transposed(dy, w, (t, outputs, inputs), beta, dx);
}

/// Sets negative values to 0.
pub fn relu<R: Real>(x: &mut [R]) {
    for v in x {
        if *v < R::zero() {
            *v = R::zero();
        }
    }
}

/// Passes gradients where the output was positive.
pub fn relu_backward<R: Real>(y: &[R], dy: &mut [R]) {
    for (d, v) in dy.iter_mut().zip(y) {
        if *v <= R::zero() {
            *d = R::zero();
        }
    }
}

/// Draws the values that dropout keeps.
pub struct Dropout<'r> {
    /// Share of dropped values, in 1/65,536.
    threshold: u16,
    rng: &'r mut ChaCha8Rng,
}

impl<'r> Dropout<'r> {
    /// Dropout of a share `p` of all values, 0 to below 1.
    pub fn new(p: f64, rng: &'r mut ChaCha8Rng) -> Self {
        Dropout { threshold: (p * 65_536.0) as u16, rng }
    }

    /// Multiplies by 0 or `1 / (1 - p)` and keeps the factors in `mask`.
    pub fn apply<R: Real>(&mut self, x: &mut [R], mask: &mut Vec<R>) {
        let kept = R::of(65_536.0 / (65_536.0 - f64::from(self.threshold)));
        mask.clear();
        while mask.len() < x.len() {
            let two = self.rng.next_u32();
            for draw in [two as u16, (two >> 16) as u16] {
                mask.push(if draw < self.threshold { R::zero() } else { kept });
            }
        }
        mask.truncate(x.len());
        scale(x, mask);
    }
}

/// Multiplies element by element; an empty mask changes no value.
pub fn scale<R: Real>(x: &mut [R], mask: &[R]) {
    for (v, m) in x.iter_mut().zip(mask) {
        *v *= *m;
    }
}

/// The learned part of a layer norm, one value per column.
#[derive(Clone, Copy)]
pub struct Affine<'a, R> {
    /// Factors of the columns.
    pub gain: &'a [R],
    /// Summands of the columns.
    pub bias: &'a [R],
}

/// `y = (x - mean) / deviation * gain + bias` per row of `gain.len()`. Keeps the normalised rows and the inverse deviations.
pub fn layer_norm<R: Real>(x: &[R], Affine { gain, bias }: Affine<R>, y: &mut [R], hat: &mut [R], inverse: &mut [R]) {
    let d = gain.len();
    let n = R::of(d as f64);
    for (((x, y), hat), inverse) in
        x.chunks_exact(d).zip(y.chunks_exact_mut(d)).zip(hat.chunks_exact_mut(d)).zip(inverse.iter_mut())
    {
        let mean = x.iter().fold(R::zero(), |s, v| s + *v) / n;
        let variance = x.iter().fold(R::zero(), |s, v| s + (*v - mean) * (*v - mean)) / n;
        *inverse = R::one() / (variance + R::of(EPSILON)).sqrt();
        for i in 0..d {
            hat[i] = (x[i] - mean) * *inverse;
            y[i] = hat[i] * gain[i] + bias[i];
        }
    }
}

/// Gradients of [`layer_norm`] from the rows and deviations that it kept. Overwrites `dx`; adds to `dgain` and `dbias`.
pub fn layer_norm_backward<R: Real>(
    dy: &[R],
    (hat, inverse): (&[R], &[R]),
    gain: &[R],
    dx: &mut [R],
    (dgain, dbias): (&mut [R], &mut [R]),
) {
    let d = gain.len();
    let n = R::of(d as f64);
    for (((dy, hat), dx), inverse) in
        dy.chunks_exact(d).zip(hat.chunks_exact(d)).zip(dx.chunks_exact_mut(d)).zip(inverse)
    {
        let (mut sum, mut along) = (R::zero(), R::zero());
        for i in 0..d {
            dgain[i] += dy[i] * hat[i];
            dbias[i] += dy[i];
            let g = dy[i] * gain[i];
            sum += g;
            along += g * hat[i];
        }
        let (sum, along) = (sum / n, along / n);
        for i in 0..d {
            dx[i] = *inverse * (dy[i] * gain[i] - sum - hat[i] * along);
        }
    }
}

/// Softmax in place.
pub fn softmax<R: Real>(x: &mut [R]) {
    let Some(&first) = x.first() else { return };
    let most = x.iter().fold(first, |m, v| if *v > m { *v } else { m });
    let mut sum = R::zero();
    for v in x.iter_mut() {
        *v = (*v - most).exp();
        sum += *v;
    }
    for v in x {
        *v = *v / sum;
    }
}

/// Converts the gradient of the output to that of the input, in place: `d = p (d - Σ p d)`.
pub fn softmax_backward<R: Real>(p: &[R], d: &mut [R]) {
    let along = p.iter().zip(d.iter()).fold(R::zero(), |s, (p, d)| s + *p * *d);
    for (d, p) in d.iter_mut().zip(p) {
        *d = *p * (*d - along);
    }
}

/// Attention inside the sets of a batch. Queries, keys and values are parts of rows of three times `width`.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// End of every set, in tokens.
    pub ends: &'a [u32],
    /// Width of a token.
    pub width: usize,
    /// Number of heads; divides the width.
    pub heads: usize,
}

impl Attention<'_> {
    /// Number of attention weights of the batch: heads times tokens squared, over its sets.
    pub fn weight_count(&self) -> usize {
        ranges(self.ends).map(|r| self.heads * r.len() * r.len()).sum()
    }

    /// Width of a head.
    fn each(&self) -> usize {
        self.width / self.heads
    }

    /// Position of a token's query for a head in `qkv`. The key is `width` after it, the value twice `width` after it.
    fn query_at(&self, token: usize, head: usize) -> usize {
        token * 3 * self.width + head * self.each()
    }

    /// Attention weights of every set, head and token: softmax of the scaled products of queries and keys.
    pub fn weights<R: Real>(&self, qkv: &[R], weights: &mut [R]) {
        let each = self.each();
        let by_root = R::one() / R::of(each as f64).sqrt();
        let mut at = 0;
        for r in ranges(self.ends) {
            let n = r.len();
            for h in 0..self.heads {
                for i in r.clone() {
                    let q = &qkv[self.query_at(i, h)..][..each];
                    let row = &mut weights[at..at + n];
                    for (w, j) in row.iter_mut().zip(r.clone()) {
                        let k = &qkv[self.query_at(j, h) + self.width..][..each];
                        *w = q.iter().zip(k).fold(R::zero(), |s, (a, b)| s + *a * *b) * by_root;
                    }
                    softmax(row);
                    at += n;
                }
            }
        }
    }

    /// The weighted sum of values of every token.
    pub fn mix<R: Real>(&self, qkv: &[R], weights: &[R], out: &mut [R]) {
        let each = self.each();
        let mut at = 0;
        for r in ranges(self.ends) {
            let n = r.len();
            for h in 0..self.heads {
                for i in r.clone() {
                    let o = &mut out[i * self.width + h * each..][..each];
                    o.fill(R::zero());
                    for (w, j) in weights[at..at + n].iter().zip(r.clone()) {
                        let v = &qkv[self.query_at(j, h) + 2 * self.width..][..each];
                        for (o, v) in o.iter_mut().zip(v) {
                            *o += *w * *v;
                        }
                    }
                    at += n;
                }
            }
        }
    }

    /// Gradients of [`Attention::weights`] and [`Attention::mix`]. Overwrites `dqkv`. `weights` are the weights before
    /// dropout; `mask` holds the dropout factors (empty without dropout).
    pub fn backward<R: Real>(&self, qkv: &[R], weights: &[R], mask: &[R], dout: &[R], dqkv: &mut [R]) {
        let each = self.each();
        let by_root = R::one() / R::of(each as f64).sqrt();
        dqkv.fill(R::zero());
        let mut dw: Vec<R> = Vec::new();
        let mut at = 0;
        for r in ranges(self.ends) {
            let n = r.len();
            for h in 0..self.heads {
                for i in r.clone() {
                    let p = &weights[at..at + n];
                    let d = &dout[i * self.width + h * each..][..each];
                    dw.clear();
                    for (x, j) in r.clone().enumerate() {
                        let keep = if mask.is_empty() { R::one() } else { mask[at + x] };
                        let v = self.query_at(j, h) + 2 * self.width;
                        let mut along = R::zero();
                        for e in 0..each {
                            along += d[e] * qkv[v + e];
                            dqkv[v + e] += p[x] * keep * d[e];
                        }
                        dw.push(along * keep);
                    }
                    softmax_backward(p, &mut dw);
                    let q = self.query_at(i, h);
                    for (x, j) in r.clone().enumerate() {
                        let g = dw[x] * by_root;
                        let k = self.query_at(j, h) + self.width;
                        for e in 0..each {
                            dqkv[q + e] += g * qkv[k + e];
                            dqkv[k + e] += g * qkv[q + e];
                        }
                    }
                    at += n;
                }
            }
        }
    }
}

/// Attention pooling: one row per set, the average of its tokens weighted by a softmax of `x · query`. The output has
/// rows of `stride`, of which the first `query.len()` values are written. There is one weight per token.
#[derive(Clone, Copy)]
pub struct Pooling<'a, R> {
    /// The learned query.
    pub query: &'a [R],
    /// End of every set, in tokens.
    pub ends: &'a [u32],
    /// Length of an output row.
    pub stride: usize,
}

impl<R: Real> Pooling<'_, R> {
    /// Writes `weights` and `out`.
    pub fn forward(&self, x: &[R], weights: &mut [R], out: &mut [R]) {
        let d = self.query.len();
        for (s, r) in ranges(self.ends).enumerate() {
            let w = &mut weights[r.clone()];
            for (w, i) in w.iter_mut().zip(r.clone()) {
                *w = x[i * d..][..d].iter().zip(self.query).fold(R::zero(), |s, (a, b)| s + *a * *b);
            }
            softmax(w);
            let o = &mut out[s * self.stride..][..d];
            o.fill(R::zero());
            for (w, i) in w.iter().zip(r) {
                for (o, v) in o.iter_mut().zip(&x[i * d..][..d]) {
                    *o += *w * *v;
                }
            }
        }
    }

    /// Gradients of [`Pooling::forward`]. Overwrites `dx`; adds to `dquery`.
    pub fn backward(&self, x: &[R], weights: &[R], dout: &[R], dx: &mut [R], dquery: &mut [R]) {
        let d = self.query.len();
        let mut dw: Vec<R> = Vec::new();
        for (s, r) in ranges(self.ends).enumerate() {
            let g = &dout[s * self.stride..][..d];
            dw.clear();
            for i in r.clone() {
                dw.push(x[i * d..][..d].iter().zip(g).fold(R::zero(), |s, (a, b)| s + *a * *b));
            }
            softmax_backward(&weights[r.clone()], &mut dw);
            for (n, i) in r.enumerate() {
                for e in 0..d {
                    dx[i * d + e] = weights[i] * g[e] + dw[n] * self.query[e];
                    dquery[e] += dw[n] * x[i * d + e];
                }
            }
        }
    }
}

/// Mean Huber loss of the batch, with its knee at 1; `d` is overwritten with the gradient.
pub fn huber<R: Real>(prediction: &[R], truth: &[R], d: &mut Vec<R>) -> f64 {
    let n = prediction.len().max(1) as f64;
    let mut loss = 0.0;
    d.clear();
    for (p, t) in prediction.iter().zip(truth) {
        let e = (*p - *t).f64();
        loss += if e.abs() < 1.0 { 0.5 * e * e } else { e.abs() - 0.5 };
        d.push(R::of(e.clamp(-1.0, 1.0) / n));
    }
    loss / n
}
