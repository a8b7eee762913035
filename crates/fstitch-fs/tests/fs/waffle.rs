//! waffle answers as the model does, and leaves a volume in which the checker finds nothing.

use std::sync::Arc;

use fstitch_core::{BlockDevice, FileSystem, ManualClock, MemDevice, Timestamp};
use fstitch_fs::uhfs::AtimePolicy;
use fstitch_fs::waffle::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::waffle::{Options, Waffle, check};
use fstitch_patch::CacheOptions;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::driver::{Medium, Op, compare};
use crate::properties::{cache_options, op};
use crate::shape::shape;

struct WaffleMedium {
    device: Arc<MemDevice>,
    options: CacheOptions,
    clock: Arc<ManualClock>,
}

impl Medium for WaffleMedium {
    fn mount(&self) -> Arc<dyn FileSystem> {
        let options = Options { atime: AtimePolicy::NoAtime, idle_nodes: 2, ..Options::default() };
        let device = Arc::<MemDevice>::clone(&self.device);
        let clock = Arc::<ManualClock>::clone(&self.clock);
        Waffle::mount(device, self.options.clone(), clock, options).unwrap()
    }

    fn link_max(&self) -> u32 {
        1 << 30
    }

    fn born_with(&self) -> Option<(&'static [u8], u16)> {
        None
    }
}

/// What a volume keeps that the model does not: longer attributes.
fn is_told(op: &Op) -> bool {
    !matches!(op, Op::SetXattr(_, _, len, _) if *len > 400)
}

fn told(
    (blocks, is_compressed): (u64, bool),
    ops: &[Op],
    options: CacheOptions,
) -> Result<(), TestCaseError> {
    let clock = Arc::new(ManualClock::new());
    let device = Arc::new(MemDevice::new(4096, blocks));
    let made = MkfsOptions {
        uuid: [1; 16],
        label: Vec::new(),
        seed: 5,
        now: Timestamp::default(),
        owner: (0, 0),
        blocks: None,
        is_compressed,
    };
    mkfs(Arc::clone(&device) as Arc<dyn BlockDevice>, &made).unwrap();
    let medium = WaffleMedium { device: Arc::clone(&device), options, clock: Arc::clone(&clock) };
    let ops: Vec<Op> = ops.iter().filter(|op| is_told(op)).cloned().collect();
    compare(&medium, 4096, &clock, &ops);
    let report = check::check(device).unwrap();
    prop_assert!(report.is_clean(), "{:#?}", report.findings);
    Ok(())
}

/// Borders of a file: blocks, clusters, and the reach of one node and of two.
const BORDERS: [u64; 9] =
    [0, 4096, 8192, 16 << 12, 127 << 12, 128 << 12, 129 << 12, 128 << 19, (128 << 19) + 5000];

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn waffle_answers_as_the_model(
        ops in proptest::collection::vec(op(), 1..200),
        (small, is_compressed, optimizations) in (any::<bool>(), any::<bool>(), 0..16_u8),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        told((16_384, is_compressed), &ops, cache_options(cache_size, optimizations))?;
    }

    #[test]
    fn files_of_waffle_have_their_shape(
        ops in proptest::collection::vec(shape(&BORDERS), 1..24),
        (small, is_compressed, optimizations) in (any::<bool>(), any::<bool>(), 0..16_u8),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        told((65_536, is_compressed), &ops, cache_options(cache_size, optimizations))?;
    }
}
