//! Programs that do nothing but give a few files another shape: blocks come, go and serve again all the time.
//!
//! What they prevent: that what a block held before comes into a file, and that a place where a tree of blocks becomes higher, or ends,
//! is treated as any other.

use fstitch_core::num::to_usize;
use proptest::prelude::*;

use crate::driver::{Op, Target};

/// Places around borders.
fn place(borders: &[u64]) -> impl Strategy<Value = u64> + use<> {
    (proptest::sample::select(borders.to_vec()), -9..10_i64).prop_map(|(at, by)| at.saturating_add_signed(by))
}

/// Operations on two files, around the places where something else is responsible for a byte.
pub fn shape(borders: &[u64]) -> impl Strategy<Value = Op> + use<> {
    let name = || proptest::sample::select(vec![b"a".to_vec(), b"b".to_vec()]);
    let file = move || name().prop_map(Target::Path);
    let len = || prop_oneof![1..20_u64, 4000..4200_u64, 1..13_000_u64];
    prop_oneof![
        3 => name().prop_map(|name| Op::Create(name, 0o644)),
        2 => name().prop_map(Op::Unlink),
        5 => (file(), place(borders), len(), any::<u8>())
            .prop_map(|(file, at, len, byte)| Op::Write(file, at, to_usize(len), byte)),
        3 => (file(), place(borders)).prop_map(|(file, size)| Op::Truncate(file, size)),
        5 => (file(), place(borders), len(), 0..5_u8)
            .prop_map(|(file, at, len, mode)| Op::Fallocate(file, at, len, mode)),
        1 => Just(Op::Remount),
    ]
}
