//! The bytes that each rank sends to each rank.

/// Maximum number of ranks.
pub const RANKS_MAX: usize = 1024;
/// Maximum number of bytes of one demand matrix: below it every sum is exact in a 64-bit float.
pub const BYTES_MAX: u64 = 1 << 52;

/// Why a demand is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// The number of ranks is out of range.
    #[error("{0} ranks; 1 to {RANKS_MAX} are supported")]
    Ranks(usize),
    /// The sum exceeds [`BYTES_MAX`].
    #[error("the demands sum to more than 2^52 bytes (4 PiB)")]
    TooManyBytes,
}

/// A square matrix of bytes: the row is the sender, the column the receiver. Bytes from a rank to itself are stored but use no link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    ranks: usize,
    bytes: Vec<u64>,
    total: u64,
}

impl Demand {
    /// A demand without bytes.
    pub fn new(ranks: usize) -> Result<Self, DemandError> {
        match (1..=RANKS_MAX).contains(&ranks) {
            true => Ok(Demand { ranks, bytes: vec![0; ranks * ranks], total: 0 }),
            false => Err(DemandError::Ranks(ranks)),
        }
    }
    /// A demand from its rows, one after the other. O(ranks²).
    pub fn from_rows(ranks: usize, bytes: Vec<u64>) -> Result<Self, DemandError> {
        if !(1..=RANKS_MAX).contains(&ranks) || bytes.len() != ranks * ranks {
            return Err(DemandError::Ranks(ranks));
        }
        let total = bytes.iter().try_fold(0u64, |s, &b| s.checked_add(b)).filter(|t| *t <= BYTES_MAX);
        Ok(Demand { ranks, bytes, total: total.ok_or(DemandError::TooManyBytes)? })
    }
    /// Number of ranks.
    #[inline]
    pub fn ranks(&self) -> usize {
        self.ranks
    }
    /// Bytes from one rank to another.
    #[inline]
    pub fn get(&self, src: usize, dst: usize) -> u64 {
        self.bytes[src * self.ranks + dst]
    }
    /// Bytes from a rank to every rank.
    #[inline]
    pub fn row(&self, src: usize) -> &[u64] {
        &self.bytes[src * self.ranks..(src + 1) * self.ranks]
    }
    /// Sets the bytes of one pair.
    pub fn set(&mut self, src: usize, dst: usize, bytes: u64) -> Result<(), DemandError> {
        let place = src * self.ranks + dst;
        let rest = self.total - self.bytes[place];
        self.total = rest.checked_add(bytes).filter(|t| *t <= BYTES_MAX).ok_or(DemandError::TooManyBytes)?;
        self.bytes[place] = bytes;
        Ok(())
    }
    /// Adds bytes to one pair.
    pub fn add(&mut self, src: usize, dst: usize, bytes: u64) -> Result<(), DemandError> {
        let sum = self.get(src, dst).checked_add(bytes).ok_or(DemandError::TooManyBytes)?;
        self.set(src, dst, sum)
    }
    /// Sum of all bytes, including those from ranks to themselves.
    pub fn total(&self) -> u64 {
        self.total
    }
    /// The pairs of different ranks with bytes to send: (src, dst, bytes), by row.
    pub fn pairs(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        (0..self.ranks).flat_map(move |i| {
            let row = self.row(i).iter().enumerate();
            row.filter(move |&(j, &b)| j != i && b > 0).map(move |(j, &b)| (i, j, b))
        })
    }
}
