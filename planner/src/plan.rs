//! A plan: one offset per block, and how good it is known to be.

/// Why a plan is known to be optimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Proof {
    /// The height equals the maximum load (with alignment folded in), below which no plan can be.
    LoadBound,
    /// A search for anything lower went through all possibilities.
    Search,
}

impl std::fmt::Display for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Proof::LoadBound => f.write_str("the height equals the maximum load"),
            Proof::Search => f.write_str("a search for anything lower went through all possibilities"),
        }
    }
}

/// Offsets for the blocks of one problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Where each block begins, in bytes from the arena's start; in the order of the problem's blocks.
    pub offsets: Vec<u64>,
    /// Bytes of the arena: the largest offset + size.
    pub height: u64,
    /// Bytes no plan can do without: [`crate::Problem::lower_bound`], or more where a search proved it.
    pub lower_bound: u64,
    /// Why no lower plan exists, where that is known.
    pub proof: Option<Proof>,
    /// What found the plan, for people: "skyline by length".
    pub algorithm: String,
}

impl Plan {
    /// Height over lower bound, at least 1; 1 for a problem that needs no bytes.
    pub fn ratio(&self) -> f64 {
        if self.lower_bound == 0 { 1.0 } else { self.height as f64 / self.lower_bound as f64 }
    }

    /// Whether it is proven that no plan of this problem is lower.
    pub fn optimal(&self) -> bool {
        self.proof.is_some()
    }
}
