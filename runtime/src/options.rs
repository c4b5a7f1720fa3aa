//! How a session is to run.

use crate::plan::Sharing;

/// Options of a session, named as in ONNX Runtime where it has them.
///
/// ```
/// use stepalloc_runtime::Options;
///
/// let options = Options::new().max_mem(64 << 20).memory_pattern(true);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub(crate) sharing: Sharing,
    pub(crate) arenas: bool,
    pub(crate) max_mem: u64,
    pub(crate) plans: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { sharing: Sharing::default(), arenas: true, max_mem: u64::MAX, plans: 16 }
    }
}

impl Options {
    /// The defaults: everything shared, memory kept between runs, no limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Values that are not alive at the same time share memory, and outputs are written over inputs; on by default. Off
    /// (`enable_mem_pattern`), every intermediate value has memory of its own.
    #[must_use]
    pub fn memory_pattern(mut self, on: bool) -> Self {
        self.sharing = Sharing { in_place: on, reuse: on };
        self
    }

    /// The arena is kept for the next run; on by default. Off (`enable_cpu_mem_arena`), it goes back to the system after each.
    #[must_use]
    pub fn memory_arena(mut self, on: bool) -> Self {
        self.arenas = on;
        self
    }

    /// Arenas that the session has at one time may have so many bytes in all; a run that would need more is an error before
    /// anything is computed. Outputs, and what cannot be planned, do not count.
    #[must_use]
    pub fn max_mem(mut self, bytes: u64) -> Self {
        self.max_mem = bytes;
        self
    }

    /// Plans that are kept for sets of input types, at least one; 16 by default. The one used longest ago goes.
    #[must_use]
    pub fn plans(mut self, count: usize) -> Self {
        self.plans = count.max(1);
        self
    }
}
