//! UFS under the generic part: the same answers as the model, and a volume in which the checker finds nothing.

use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use fstitch_core::{
    BlockDevice, Caller, CheckReport, FileSystem, ManualClock, MemDevice, SetAttr, SetTime, Timestamp,
};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::uhfs::{AtimePolicy, UhfsOptions};
use fstitch_patch::CacheOptions;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::driver::{Medium, Op, Target, compare};
use crate::properties::{cache_options, op};
use crate::shape::shape;

/// Version, order, bytes of a block and a fragment.
type Shape = (u32, &'static str, u32, u32);

const SHAPES: [Shape; 6] = [
    (2, "le", 8192, 1024),
    (1, "be", 4096, 512),
    (2, "be", 16_384, 2048),
    (1, "le", 8192, 1024),
    (2, "le", 4096, 4096),
    (1, "le", 32_768, 4096),
];

/// An empty volume of makefs; `None` where that is not installed.
fn made(shape: Shape) -> Option<Vec<u8>> {
    static MADE: OnceLock<Vec<Option<Vec<u8>>>> = OnceLock::new();
    let all = MADE.get_or_init(|| SHAPES.into_iter().map(make).collect());
    SHAPES.iter().position(|&other| other == shape).and_then(|at| all[at].clone())
}

fn make((version, order, block, fragment): Shape) -> Option<Vec<u8>> {
    let name = format!("fstitch-ufs-{}-{version}{order}{block}", std::process::id());
    let (dir, image) = (std::env::temp_dir().join(&name), std::env::temp_dir().join(format!("{name}.img")));
    std::fs::create_dir_all(&dir).unwrap();
    let done = Command::new("makefs")
        .args(["-t", "ffs", "-B", order, "-s", "24m", "-f", "600", "-T", "0"])
        .args(["-o", &format!("version={version},bsize={block},fsize={fragment},minfree=0")])
        .args([&image, &dir])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let bytes = done.ok().map(|status| {
        assert!(status.success(), "makefs {name}");
        std::fs::read(&image).unwrap()
    });
    std::fs::remove_dir(&dir).unwrap();
    let _absent = std::fs::remove_file(&image);
    bytes.map(|bytes| born_at_0(bytes, fragment))
}

/// The same volume with a root that was read when time began, as the model's was.
fn born_at_0(bytes: Vec<u8>, fragment: u32) -> Vec<u8> {
    let device = Arc::new(MemDevice::from_image(fragment, bytes));
    let options = CacheOptions::default();
    let medium = UfsMedium { device: Arc::clone(&device), options, clock: Arc::new(ManualClock::new()) };
    let fs = medium.mount();
    let time = Some(SetTime::At(Timestamp::default()));
    let attr = SetAttr { atime: time, mtime: time, ..SetAttr::default() };
    fs.setattr(&Caller::default(), fs.root(), &attr).unwrap();
    fs.unmount().unwrap();
    device.image()
}

struct UfsMedium {
    device: Arc<MemDevice>,
    options: CacheOptions,
    clock: Arc<ManualClock>,
}

impl UfsMedium {
    fn check(&self) -> CheckReport {
        let cache = CacheOptions { read_only: true, ..CacheOptions::default() };
        let arrangement = Arrangement { cache, ..Arrangement::default() };
        let device = Arc::<MemDevice>::clone(&self.device);
        let (fs, _) =
            arrange::open::<Ufs>(device, &arrangement, Arc::<ManualClock>::clone(&self.clock)).unwrap();
        fs.format().check_volume().unwrap()
    }
}

impl Medium for UfsMedium {
    fn mount(&self) -> Arc<dyn FileSystem> {
        let fs = UhfsOptions { atime: AtimePolicy::NoAtime, idle_nodes: Some(2), ..UhfsOptions::default() };
        let arrangement = Arrangement { cache: self.options.clone(), fs, ..Arrangement::default() };
        let device = Arc::<MemDevice>::clone(&self.device);
        Arc::new(
            arrange::open::<Ufs>(device, &arrangement, Arc::<ManualClock>::clone(&self.clock)).unwrap().0,
        )
    }

    fn link_max(&self) -> u32 {
        32_767
    }

    fn born_with(&self) -> Option<(&'static [u8], u16)> {
        None
    }
}

/// Numbers of devices have 8 bits of the one half.
fn narrowed(op: Op) -> Op {
    match op {
        Op::Device(path, mode, rdev) => Op::Device(path, mode, rdev & 0xffff),
        other => other,
    }
}

/// What a volume answers otherwise than the model: where holes are, and what it does not keep.
fn is_told(op: &Op, version: u32) -> bool {
    match op {
        Op::Seek(..) | Op::Flags(..) => false,
        // Those of users.
        Op::SetXattr(_, name, ..) | Op::RemoveXattr(_, name) => version == 2 && name % 3 == 0,
        _ => true,
    }
}

/// Carries operations out on a volume of that shape and on the model, and checks what is left.
fn told(shape: Shape, ops: &[Op], cache: CacheOptions) -> Result<(), TestCaseError> {
    let Some(image) = made(shape) else {
        println!("skipped: makefs is not installed");
        return Ok(());
    };
    let clock = Arc::new(ManualClock::new());
    let device = Arc::new(MemDevice::from_image(shape.3, image));
    assert_eq!(device.geometry().block_size, shape.3);
    let medium = UfsMedium { device, options: cache, clock: Arc::clone(&clock) };
    compare(&medium, shape.3, &clock, ops);
    let report = medium.check();
    prop_assert!(report.is_clean(), "{:?}: {:#?}", shape, report.findings);
    Ok(())
}

/// Borders of a file: a fragment and two of some size, blocks, the last direct block and the first indirect ones of all shapes.
const BORDERS: [u64; 15] = [
    0,
    512,
    1024,
    4096,
    8192,
    12 << 12,
    13 << 12,
    12 << 13,
    13 << 13,
    (12 << 13) + 3000,
    12 << 14,
    (12 << 14) + 9000,
    12 << 15,
    (12 << 15) + 5000,
    (12 + 1024) << 12,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn ufs_answers_as_the_model(
        ops in proptest::collection::vec(op(), 1..150),
        (shape, small, optimizations) in (0..SHAPES.len(), any::<bool>(), 0..16_u8),
    ) {
        let shape = SHAPES[shape];
        let ops: Vec<Op> = ops.into_iter().filter(|op| is_told(op, shape.0)).map(narrowed).collect();
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        told(shape, &ops, cache_options(cache_size, optimizations))?;
    }

    #[test]
    fn files_of_ufs_have_their_shape(
        ops in proptest::collection::vec(shape(&BORDERS), 1..24),
        (kind, small, optimizations) in (0..SHAPES.len(), any::<bool>(), 0..16_u8),
    ) {
        let cache_size = if small { CacheOptions::MIN_CACHE_SIZE } else { 64 << 20 };
        told(SHAPES[kind], &ops, cache_options(cache_size, optimizations))?;
    }
}

/// What fsx found: of a file that ends behind its direct blocks all of the last block stays, and what lies there behind the end was not
/// zeroed.
#[test]
fn what_a_file_has_lost_in_its_last_block_does_not_come_back() {
    let shape = (1, "le", 32_768, 4096);
    let file = || Target::Path(b"a".to_vec());
    let ops = [
        Op::Create(b"a".to_vec(), 0o644),
        Op::Write(file(), 0x6_40b4, 0xe1b7, 7),
        Op::Truncate(file(), 0x6_45c4),
        Op::Truncate(file(), 0x9_6a48),
        Op::Read(file(), 0x5_9449, 0xd6a7),
        Op::Remount,
        Op::Read(file(), 0x6_4000, 0xd6a7),
    ];
    told(shape, &ops, CacheOptions::default()).unwrap();
}
