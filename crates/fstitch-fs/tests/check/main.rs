//! Making, checking and repairing ext2 volumes, judged by the reference tools.
//!
//! The failure that these tests prevent: a checker and a maker that agree with each other and with nobody else.

mod ahead;
mod corpus;
mod damage;
mod ext4;
mod features;
mod healthy;
mod journal;
mod many;
mod mkfs;
mod mkfs4;
mod mutate;
mod repair;
mod support;
