//! The program as its users call it: through mount(8) and fstab, on block devices and partitions, without
//! privileges, with wrong arguments. These tests keep exit codes, messages and machine-readable output.
#![expect(clippy::unwrap_used, reason = "these are tests, their helpers included")]

mod awake;
mod bench;
mod bpfs;
mod copy;
mod dead;
mod devices;
mod disks;
mod edit;
mod filled;
mod foreign;
mod fuse2fs;
mod harness;
mod install;
mod journal;
mod layers;
mod live;
mod lld;
mod lost;
mod mkfs4;
mod mount8;
mod patchgroups;
mod policy;
mod questions;
mod recorded;
mod refusals;
mod remedies;
mod resize;
mod shapes;
mod shepherd;
mod shutdown;
mod snapshots;
mod stack;
mod stripe;
mod ufs;
mod unprivileged;
mod usage;
mod watch;
mod whose;
