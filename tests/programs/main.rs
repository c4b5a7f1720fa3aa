//! The command and the preloaded library, with programs nobody changed.
//!
//! | module | what it asks |
//! |---|---|
//! | `exports` | does the library export what it should, and need no more than there is? |
//! | `contract` | does a C program get from it what it gets from glibc's malloc, in every phase? |
//! | `life` | and what a process goes through beside its allocations? |
//! | `restricted` | and where the system refuses more than usual? |
//! | `operations` | does every byte stay, and is memory that the system refuses no more than that? |
//! | `run`, `plan`, `demo` | does the command keep its contract? |
//! | `leaks` | is memory that grows found, and does nothing of ours grow? |
//! | `model` | are models computed as ONNX's own tests say, in the memory that was planned? |
//! | `quantize` | are models with weights of 8 bits valid, smaller, and near to what they were? |
//! | `openvino` | and the same in OpenVINO's format? |
//! | `model_memory` | and do loading, more sessions, other shapes and limits cost what they should? |
//! | `optimize` | and do they compute the same with fewer nodes, written for others to run? |
//! | `pytorch` | are unmodified trainings planned, without another result? |
//! | `runtime` | does the runtime do for C and for Python what it says, without an error of memory? |
//! | `report` | is what is seen of runs and plans right, and shown by a browser? |
//! | `batches` | and are they planned again when the batch size changes? |
//! | `ranks` | and has each rank of a launcher a plan of its own? |
//! | `unchanged` | do everyday programs behave as without it? |
//! | `wheel` | does the Python package, built and installed, do what it says? |
//!
//! `process` starts programs and ends those that hang; `compiled` makes programs of the C sources beside this file. What
//! is not installed is skipped with a line that says so; a C compiler must be there.

mod batches;
mod compare;
mod compiled;
mod contract;
mod demo;
mod exports;
mod leaks;
mod life;
mod model;
mod model_memory;
mod openvino;
mod operations;
mod optimize;
mod plan;
mod process;
mod pytorch;
mod quantize;
mod ranks;
mod report;
mod restricted;
mod run;
mod runtime;
mod unchanged;
mod wheel;

/// The backends, as `STEPALLOC_BACKEND` and `--backend` spell them.
const BACKENDS: [&str; 3] = ["glibc", "jemalloc", "mimalloc"];
