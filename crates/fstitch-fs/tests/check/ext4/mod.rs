//! ext4, judged by the reference: volumes that the kernel has filled, damage planted and random.
//!
//! The kernel fills them through loop mounts; where there are none, the tests say so and pass.

mod corpus;
mod damage;
mod fields;
mod healthy;
mod image;
mod mutate;
mod nodes;
mod used;
