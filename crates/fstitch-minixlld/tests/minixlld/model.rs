//! MinixLLD against the model of a file system: every operation answers the same, and shows the same tree.
//!
//! What it prevents: an answer that Linux does not give, an inode that leaks, a change that a remount forgets.

use std::sync::Arc;

use crate::driver::{Op, Path, Target, compare};
use crate::shape::shape;
use crate::support::Medium;
use fstitch_core::FileSystem;
use proptest::prelude::*;

impl crate::driver::Medium for Medium {
    fn mount(&self) -> Arc<dyn FileSystem> {
        let fs = Self::mount(self);
        crate::support::check(&fs);
        Arc::new(fs)
    }

    fn link_max(&self) -> u32 {
        1 << 30
    }

    fn born_with(&self) -> Option<(&'static [u8], u16)> {
        None
    }
}

fn path() -> impl Strategy<Value = Path> {
    let component = prop_oneof![
        8 => proptest::sample::select(vec!["a", "b", "c", "d"]).prop_map(str::to_owned),
        1 => proptest::sample::select(vec![".", "..", "e-with-a-longer-name"]).prop_map(str::to_owned),
    ];
    let joined = proptest::collection::vec(component, 1..4).prop_map(|parts| parts.join("/").into_bytes());
    prop_oneof![40 => joined, 1 => Just(vec![b'x'; 255]), 1 => Just(vec![b'x'; 256])]
}

/// For renames that are wrong in two ways, Linux and the model answer differently.
fn plain_path() -> impl Strategy<Value = Path> {
    path().prop_filter("plain", |path| !path.ends_with(b".") && path.len() < 256)
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![4 => path().prop_map(Target::Path), 1 => (0..4_usize).prop_map(Target::Held)]
}

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..70_000_u64,
        (0..64_u64).prop_map(|block| block * 1024),
        (0..16_u64, 0..3_u64).prop_map(|(block, around)| (block * 4096 + around).saturating_sub(1)),
    ]
}

fn perm() -> impl Strategy<Value = u16> {
    0..0o10_000_u16
}

fn names() -> impl Strategy<Value = Op> {
    let paths = || (plain_path(), plain_path(), any::<bool>());
    prop_oneof![
        4 => (path(), perm()).prop_map(|(path, perm)| Op::Create(path, perm)),
        4 => (path(), perm()).prop_map(|(path, perm)| Op::Mkdir(path, perm & 0o1777)),
        1 => (path(), 1..2000_usize).prop_map(|(path, len)| Op::Symlink(path, vec![b't'; len])),
        1 => (path(), perm(), any::<u32>()).prop_map(|(path, perm, dev)| Op::Device(path, perm, dev)),
        2 => (target(), path()).prop_map(|(target, path)| Op::Link(target, path)),
        3 => path().prop_map(Op::Unlink),
        2 => path().prop_map(Op::Rmdir),
        5 => paths().prop_map(|(from, to, replace)| Op::Rename(from, to, replace)),
    ]
}

fn contents() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (target(), offset(), 1..20_000_usize, any::<u8>())
            .prop_map(|(target, offset, len, byte)| Op::Write(target, offset, len, byte)),
        2 => (target(), offset(), 1..20_000_usize, any::<u8>())
            .prop_map(|(target, offset, len, byte)| Op::WriteBack(target, offset, len, byte)),
        1 => (target(), offset(), 0..20_000_usize).prop_map(|(t, offset, len)| Op::Read(t, offset, len)),
        1 => (target(), offset(), any::<bool>()).prop_map(|(t, offset, data)| Op::Seek(t, offset, data)),
        2 => (target(), offset()).prop_map(|(target, size)| Op::Truncate(target, size)),
        2 => (target(), offset(), 0..20_000_u64, 0..5_u8)
            .prop_map(|(target, offset, len, mode)| Op::Fallocate(target, offset, len, mode)),
    ]
}

fn others() -> impl Strategy<Value = Op> {
    prop_oneof![
        (target(), perm()).prop_map(|(target, perm)| Op::Chmod(target, perm)),
        (target(), 0..4_u8).prop_map(|(target, which)| Op::Flags(target, which)),
        (target(), 0..3_u32, 0..3_u32).prop_map(|(target, uid, gid)| Op::Chown(target, uid, gid)),
        (target(), 0..100_000_i64).prop_map(|(target, secs)| Op::Utimes(target, secs)),
        (target(), 0..6_u8, 0..600_usize, 0..3_u8)
            .prop_map(|(target, name, len, mode)| Op::SetXattr(target, name, len, mode)),
        (target(), 0..6_u8).prop_map(|(target, name)| Op::RemoveXattr(target, name)),
        path().prop_map(Op::Tmpfile),
        path().prop_map(Op::Hold),
        (0..4_usize).prop_map(Op::Release),
        (target(), any::<bool>()).prop_map(|(target, data_only)| Op::Fsync(target, data_only)),
        Just(Op::Sync),
        Just(Op::Remount),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![5 => names(), 4 => contents(), 3 => others()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn it_answers_as_the_model(ops in proptest::collection::vec(op(), 1..150), size in 0..4_u32) {
        let block_size = 512 << size;
        let medium = Medium::new(block_size, 96 << 20);
        compare(&medium, block_size, &medium.clock, &ops);
        // No inode is left that nobody names.
        crate::support::check(&medium.mount());
    }
}

/// Borders of blocks of every size, and of the first pages of a file.
const BORDERS: [u64; 9] = [0, 512, 1024, 2048, 4096, 8192, 16_384, 65_536, 1 << 20];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn files_have_their_shape(ops in proptest::collection::vec(shape(&BORDERS), 1..24), size in 0..4_u32) {
        let block_size = 512 << size;
        let medium = Medium::new(block_size, 96 << 20);
        compare(&medium, block_size, &medium.clock, &ops);
        crate::support::check(&medium.mount());
    }
}
