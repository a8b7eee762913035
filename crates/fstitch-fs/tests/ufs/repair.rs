//! Mending.

use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, MemDevice, RepairMode, RepairOptions,
    RepairReport, Result, Seed, Timestamp,
};
use fstitch_fs::ufs::check::{check_ufs, repair_ufs};

use super::damage::{Image, PLANTS, ino, victims};
use super::host::{Tree, fill, made};
use super::support::Scratch;
use super::{have_makefs, opened};

const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 5 };

/// Four shapes: both versions in both orders, and three sizes of blocks.
pub const SHAPES: [(u32, &str, u32, u32); 4] =
    [(1, "le", 8192, 1024), (1, "be", 4096, 512), (2, "le", 16_384, 2048), (2, "be", 8192, 1024)];

/// Runs that no damage needs: each pass has its own, and few come twice.
const RUNS: u32 = 16;

/// Repairs an image; what it becomes, and the report.
pub fn repair(image: &[u8], mode: RepairMode) -> Result<(Vec<u8>, RepairReport)> {
    let device = MemDevice::from_image(512, image.to_vec());
    let report = repair_ufs(&device, RepairOptions { mode, now: NOW })?;
    Ok((device.image().clone(), report))
}

pub fn repaired(image: &[u8], mode: RepairMode) -> (Vec<u8>, RepairReport) {
    repair(image, mode).unwrap()
}

/// Repairs an image so that nothing is found any more.
pub fn mended(image: &[u8], what: &str) -> (Vec<u8>, RepairReport) {
    let (image, report) = repaired(image, RepairMode::Yes);
    assert!(report.left.is_clean(), "{what}: {} runs, left: {:#?}", report.runs, report.left.findings);
    let again = check_ufs(&MemDevice::from_image(512, image.clone())).unwrap();
    assert!(again.is_clean(), "{what}: {:#?}", again.findings);
    (image, report)
}

#[test]
fn planted_damage_is_mended() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-mended");
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        let whole = made(&scratch, &from, shape);
        let victims = victims(&whole);
        for (code, plant) in PLANTS {
            let mut image = Image::new(whole.clone());
            plant(&mut image, victims);
            let what = format!("{shape:?}: {code}");
            let (after, report) = mended(&image.bytes, &what);
            assert!(report.found.findings.iter().any(|found| found.code == code), "{what}");
            // What was not damaged is as it was.
            let tree = Tree::of(&opened(&after).unwrap()).unwrap();
            for path in tree.differences(&expected) {
                let is_victim = ["long", "deep/er/again", "many", "lost+found"]
                    .iter()
                    .any(|victim| path.starts_with(victim));
                assert!(
                    is_victim && matches!(code, "pointer" | "block-shared" | "dir-entry"),
                    "{what}: {path}"
                );
            }
        }
    }
}

/// Where mutations go: superblock, a group's metadata and the first contents behind them.
fn place(image: &Image, seed: &mut Seed) -> usize {
    let fragment = image.shape.fragment_len();
    let groups = u64::from(image.shape.groups);
    let group = u32::try_from(seed.below(groups.min(3))).unwrap();
    let start = usize::try_from(image.shape.group_start(group)).unwrap();
    let [superblock, descriptor, inodes, data] =
        image.shape.parts.map(|part| (start + usize::try_from(part).unwrap()) * fragment);
    let range = match seed.below(10) {
        0 => {
            let at = usize::try_from(image.shape.at).unwrap();
            at..at + 1376
        }
        1 => superblock..superblock + 1376,
        2 | 3 => descriptor..descriptor + 400,
        4..=7 => inodes..inodes + 16 * 256,
        _ => data..data + 64 * fragment,
    };
    let len = u64::try_from(range.len()).unwrap();
    (range.start + usize::try_from(seed.below(len)).unwrap()).min(image.bytes.len() - 8)
}

fn mutate(image: &mut Image, seed: &mut Seed) {
    for _ in 0..=seed.below(6) {
        let at = place(image, seed);
        let value = seed.next_u64().to_le_bytes();
        match seed.below(5) {
            0 => image.bytes[at] ^= 1 << (value[0] % 8),
            1 | 2 => image.bytes[at] = value[0],
            3 => image.bytes[at / 4 * 4..at / 4 * 4 + 4].copy_from_slice(&value[..4]),
            _ => {
                let (from, len) = (place(image, seed), usize::from(value[0]));
                let len = len.min(image.bytes.len() - from.max(at));
                image.bytes.copy_within(from..from + len, at);
            }
        }
    }
}

/// As many as the environment asks for.
fn turns(usual: u64) -> u64 {
    std::env::var("FSTITCH_MUTATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(usual)
}

/// The number of the first, by which a failure is looked at alone.
fn first_turn() -> u64 {
    std::env::var("FSTITCH_MUTATION_FIRST").ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[test]
fn any_damage_is_mended() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-mutated");
    let from = scratch.path("from");
    fill(&from);
    let (mut hopeless, mut refused, mut sound, mut runs) = (0, 0, 0, 0);
    for shape in SHAPES {
        let whole = made(&scratch, &from, shape);
        for turn in first_turn()..turns(60) {
            let mut image = Image::new(whole.clone());
            mutate(&mut image, &mut Seed::new(turn));
            let what = format!("{shape:?}, {turn}");
            let (after, report) = match repair(&image.bytes, RepairMode::Yes) {
                // A flag says that there is a journal or a quota.
                Err(Error::Unsupported(_)) => {
                    refused += 1;
                    continue;
                }
                other => other.unwrap_or_else(|error| panic!("{what}: {error}")),
            };
            sound += u64::from(report.found.is_clean());
            runs = runs.max(report.runs);
            // It ends because nothing is left that can be mended.
            assert!(report.runs < RUNS, "{what}: {} runs, left {:#?}", report.runs, report.left.findings);
            if report.left.findings.iter().any(|left| left.code == "superblock-damaged") {
                hopeless += 1;
                continue;
            }
            assert!(report.left.is_clean(), "{what}: {} runs, left {:#?}", report.runs, report.left.findings);
            let again = check_ufs(&MemDevice::from_image(512, after.clone())).unwrap();
            assert!(again.is_clean(), "{what}: {:#?}", again.findings);
            let fs = opened(&after).unwrap();
            match Tree::of(&fs) {
                // A file that became a snapshot.
                Err(error) if error.errno() == fstitch_core::Errno::OPNOTSUPP => {}
                other => drop(other.unwrap_or_else(|error| panic!("{what}: {error}"))),
            }
        }
    }
    println!("{hopeless} hopeless, {refused} refused, {sound} sound, {runs} runs at most");
    let few = turns(60) / 4;
    assert!(hopeless < few && refused < few && sound < few * 4);
}

/// A device that fails once it was written to so many times.
struct Cut {
    below: MemDevice,
    left: AtomicU64,
}

impl BlockDevice for Cut {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.below.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        left.map_err(|_| fstitch_core::Errno::IO)?;
        self.below.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }
}

#[test]
fn mending_what_a_crash_leaves_can_be_cut_off_anywhere() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-cut");
    let from = scratch.path("from");
    fill(&from);
    let (mut cuts, mut ends) = (0, 0);
    for shape in [SHAPES[1], SHAPES[2]] {
        let mut image = Image::new(made(&scratch, &from, shape));
        // A file, a tree, and the second name of a directory: all that lost+found has to do.
        let deep = ino(&image.bytes, "deep/er");
        for name in ["holes", "many", "long"] {
            let at = image.entry(2, name);
            let (ino, kind) = if name == "long" { (deep, 4) } else { (0, 0) };
            image.put32(at, ino);
            image.bytes[at + 6] = kind;
        }
        let clean = image.superblock(209);
        image.bytes[clean] = 0;
        for left in 0..200 {
            let device =
                Cut { below: MemDevice::from_image(512, image.bytes.clone()), left: AtomicU64::new(left) };
            let options = RepairOptions { mode: RepairMode::Preen, now: NOW };
            let done = repair_ufs(&device, options);
            let after = device.below.image().clone();
            let found = check_ufs(&MemDevice::from_image(512, after.clone())).unwrap();
            assert_eq!(found.corrupt, 0, "{shape:?}, {left} writes: {:#?}", found.findings);
            match done {
                Ok(report) => {
                    assert!(report.left.is_clean(), "{shape:?}: {:#?}", report.left.findings);
                    ends += 1;
                    break;
                }
                Err(_) => cuts += 1,
            }
            let (_, report) = repaired(&after, RepairMode::Preen);
            assert!(report.left.is_clean(), "{shape:?}, {left} writes: {:#?}", report.left.findings);
        }
    }
    assert!(cuts > 20 && ends == 2, "{cuts} cuts, {ends} ends");
}
