//! How a session is to run.

use crate::arena::{ArenaExtendStrategy, Arenas};
use crate::passes::Optimization;
use crate::plan::Sharing;

/// Options of a session, named as in ONNX Runtime where it has them.
///
/// ```
/// use stepalloc_graph::Options;
///
/// let options = Options::new().max_mem(64 << 20).memory_pattern(true);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) sharing: Sharing,
    pub(crate) keep_arenas: bool,
    pub(crate) extend: ArenaExtendStrategy,
    pub(crate) arenas: Option<Arenas>,
    pub(crate) max_mem: u64,
    pub(crate) plans: usize,
    pub(crate) optimization: Optimization,
    pub(crate) intra_op_num_threads: usize,
    pub(crate) compilation_num_threads: usize,
    pub(crate) huge_pages: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sharing: Sharing::default(),
            keep_arenas: true,
            extend: ArenaExtendStrategy::default(),
            arenas: None,
            max_mem: u64::MAX,
            plans: 16,
            optimization: Optimization::default(),
            intra_op_num_threads: 0,
            compilation_num_threads: 0,
            huge_pages: false,
        }
    }
}

impl Options {
    /// The defaults: everything shared, memory kept between runs, no limit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Values that are not alive at the same time share memory, and outputs are written over inputs; on by default. Off
    /// (`enable_mem_pattern`), every intermediate value has memory of its own; within the graphs of Loop and Scan, whose values are
    /// those of one round, they share all the same.
    #[must_use]
    pub fn memory_pattern(mut self, on: bool) -> Self {
        self.sharing = Sharing { in_place: on, reuse: on, ..self.sharing };
        self
    }

    /// The arena is kept for the next run; on by default. Off (`enable_cpu_mem_arena`), it goes back to the system after each.
    #[must_use]
    pub fn memory_arena(mut self, on: bool) -> Self {
        self.keep_arenas = on;
        self
    }

    /// How large an arena is made; as large as the plan says by default.
    #[must_use]
    pub fn arena_extend_strategy(mut self, strategy: ArenaExtendStrategy) -> Self {
        self.extend = strategy;
        self
    }

    /// Arenas that the session uses in turns with others. By default the sessions of one model share theirs, unless they have a
    /// limit.
    #[must_use]
    pub fn arenas(mut self, arenas: &Arenas) -> Self {
        self.arenas = Some(arenas.clone());
        self
    }

    /// The session may have so many bytes at one time. What counts: its arenas, outputs it makes (of [`Session::run`] until it
    /// returns, of a [`Binding`] as long as they are bound), tensors that could not be planned, and weights that are copied from
    /// the file. What does not: weights that stay in the file, inputs and outputs that the caller gives, the graph, plans, and
    /// small blocks that operators take. Weights that passes make are counted when the graph was optimized, and not while it is.
    ///
    /// A run that would need more is an error: before anything is computed, unless it is of nodes whose outputs' sizes are only
    /// known when they run. The session can be used after it, with smaller inputs.
    ///
    /// A session with a limit has arenas of its own. If it is given others, it keeps to both limits; its own one counts its
    /// weights, its plan and its outputs then.
    ///
    /// [`Session::run`]: crate::Session::run
    /// [`Binding`]: crate::Binding
    #[must_use]
    pub fn max_mem(mut self, bytes: u64) -> Self {
        self.max_mem = bytes;
        self
    }

    /// How the graph is optimized; as far as it goes by default. It is when the first plan is made, once for all sessions of the model
    /// that are told the same, so that no weight is read before.
    #[must_use]
    pub fn optimization(mut self, optimization: &Optimization) -> Self {
        self.optimization = optimization.clone();
        self
    }

    /// Constant factors of matrix products and weights of convolutions are packed when they are first used, once for all sessions that
    /// have the same elements, and not in every run; on by default. What was read of a mapped file for that goes back to the system, so
    /// that no more memory is taken afterwards; but while the largest one is packed, it is there twice, and what is packed is not shared
    /// with other processes, as pages of a file are. What passes made of weights is not packed, for it would be there twice. Graphs within nodes (Loop, Scan, If) and sessions with a limit do without.
    #[must_use]
    pub fn prepacking(mut self, on: bool) -> Self {
        self.sharing.packed = on;
        self
    }

    /// Threads that a run may use. 0, the default: those of the caller's rayon pool, which all sessions share. Else the session has
    /// so many of its own, made when it first runs; a run then takes place on them, and the caller waits. Where the system has none
    /// for them, the caller's are used. Runs of one session that come at the same time share its threads, and one may wait for
    /// another to end: callers that must not wait have a session each, which costs no second arena unless both run.
    #[must_use]
    pub fn intra_op_num_threads(mut self, count: usize) -> Self {
        self.intra_op_num_threads = count;
        self
    }

    /// Threads that what is done before a run may use: to optimize, to compute what is constant, to plan. 0, the default: those of
    /// runs. Others are there only meanwhile. Named as in OpenVINO.
    #[must_use]
    pub fn compilation_num_threads(mut self, count: usize) -> Self {
        self.compilation_num_threads = count;
        self
    }

    /// The system is asked for huge pages where arenas that are made are larger than one (2 MiB on x86-64); off by default. That saves
    /// page faults; pages of an arena that its plans do not touch may then take memory as well.
    #[must_use]
    pub fn huge_pages(mut self, on: bool) -> Self {
        self.huge_pages = on;
        self
    }

    /// What [`Options::max_mem`] was told; `u64::MAX` without a limit.
    pub fn limit(&self) -> u64 {
        self.max_mem
    }

    /// Plans that are kept for sets of input types, at least one; 16 by default. The one used longest ago goes. Sessions of one model
    /// have plans in common, and as many more.
    #[must_use]
    pub fn plans(mut self, count: usize) -> Self {
        self.plans = count.max(1);
        self
    }
}
