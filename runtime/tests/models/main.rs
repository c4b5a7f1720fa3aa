//! Small models in one process: what passes leave of them, what is written of them, what a session tells of a
//! planned run, and those of OpenVINO.

mod openvino;
mod passes;
mod passes_fused;
mod planned;
mod save;
mod sketch;
#[path = "../wire/mod.rs"]
mod wire;
