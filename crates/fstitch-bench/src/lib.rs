//! Benchmarks: every contender on the same machine in the same run.
#![forbid(unsafe_code)]

pub mod inside;
