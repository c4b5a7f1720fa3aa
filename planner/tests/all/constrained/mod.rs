//! Constraints: what is refused, that every plan keeps them, and that plans and bounds lie on their sides of the optimum.

mod brute;
mod cases;
mod faults;
mod file;
mod optimum;
mod plans;
mod refused;
