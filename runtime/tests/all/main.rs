//! The runtime as its users have it, in one program: what sessions share and count, files that mean harm, what passes leave of small
//! models, what is written of them and quantized, what errors say and are, inputs that grow, what a session tells of a planned run, and models of OpenVINO.
//!
//! Its allocator counts what each thread takes, for tests that say how much that may be.

mod allocations;
mod arrays;
mod custom;
mod errors;
mod growing;
mod hostile;
#[path = "../../../tests/targets/src/memory.rs"]
mod memory;
mod messages;
mod openvino;
mod passes;
mod passes_bytes;
mod passes_fused;
mod planned;
mod quantize;
mod save;
mod sessions;
mod sketch;
mod warm_up;
mod wire;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;
