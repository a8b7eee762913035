//! Volumes in files of UFS volumes, and UFS volumes in files of others, with one patch graph.
//!
//! What it prevents: a block of the inner volume that lands outside the file, or is on the medium before what it comes after; the end of a
//! file that moves away from under a volume.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockNo, Caller, FileKind, FileSystem, InodeNo, MemDevice, RepairMode, Seed, SetAttr,
    SystemClock, Timestamp,
};
use fstitch_fs::arrange::{self, Arrangement, CachedFormat, Chosen};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::loopback::Loopback;
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::layout::superblock::Version;
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};
use fstitch_fs::{ext2, ufs};
use fstitch_patch::{CacheOptions, VolumeDevice, VolumeOptions};

use super::repair::repaired;

const BLOCK: u32 = 1024;
const OUTER_BLOCKS: u64 = 8192;
const INNER_BLOCKS: u64 = 4096;
const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 0 };
const FILE: u16 = 0o100_644;

/// A kind of volumes.
trait Kind {
    type Low: CachedFormat + 'static;
    fn make(device: &dyn BlockDevice);
    /// Fails unless this is what a crash may leave; what a check makes of it.
    fn settled(image: Vec<u8>, what: &str) -> Vec<u8>;
}

struct Fast;

impl Kind for Fast {
    type Low = Ufs;

    fn make(device: &dyn BlockDevice) {
        let mut options = ufs::mkfs::MkfsOptions::new(Version::Two, [7, 9], NOW);
        (options.block_size, options.fragment_size) = (Some(8 * BLOCK), Some(BLOCK));
        ufs::mkfs::mkfs(device, &options, &mut |_, _| {}).unwrap();
    }

    fn settled(image: Vec<u8>, what: &str) -> Vec<u8> {
        let (mended, report) = repaired(&image, RepairMode::Preen);
        assert_eq!(report.found.corrupt, 0, "{what}: {:#?}", report.found.findings);
        assert!(report.left.is_clean(), "{what}: {:#?}", report.left.findings);
        mended
    }
}

struct Second;

impl Kind for Second {
    type Low = Ext2;

    fn make(device: &dyn BlockDevice) {
        let mut options = ext2::mkfs::MkfsOptions::new([7; 16], [9; 16], NOW);
        (options.block_size, options.inodes) = (Some(BLOCK), Some(256));
        ext2::mkfs::mkfs(device, &options, &mut |_, _| {}).unwrap();
    }

    fn settled(image: Vec<u8>, what: &str) -> Vec<u8> {
        let report = check_ext2(&MemDevice::from_image(BLOCK, image.clone())).unwrap();
        assert_eq!(report.corrupt, 0, "{what}: {:#?}", report.findings);
        image
    }
}

fn opened<L: CachedFormat>(medium: &Arc<MemDevice>, read_only: bool) -> Uhfs<L> {
    let cache = CacheOptions { read_only, ..CacheOptions::default() };
    let arrangement = Arrangement { cache, ..Arrangement::default() };
    let device: Arc<dyn BlockDevice> = Arc::<MemDevice>::clone(medium);
    arrange::open::<L>(device, &arrangement, Arc::new(SystemClock::new())).unwrap().0
}

/// Opens the volume in a file, after it was made there if it is new.
fn attached<I: Kind, O: Kind>(outer: &Arc<Uhfs<O::Low>>, file: InodeNo, is_new: bool) -> Uhfs<I::Low> {
    let loopback = Loopback::attach(outer, file, false).unwrap();
    let cache = outer.format().cache();
    let plain = cache.volume(Arc::clone(&loopback) as _, VolumeOptions::default()).unwrap();
    let device = VolumeDevice::new(plain);
    if is_new {
        I::make(&device);
    }
    let arrangement = Arrangement::default();
    let chosen = Chosen::new::<I::Low>(&device, &arrangement).unwrap();
    let options = VolumeOptions { ordering: chosen.ordering(), ..VolumeOptions::default() };
    chosen.open_in(cache.volume(loopback, options).unwrap(), arrangement.fs).unwrap()
}

fn contents<L: CachedFormat>(fs: &Uhfs<L>, name: &[u8]) -> Vec<u8> {
    let attr = fs.lookup(fs.root(), name).unwrap().attr;
    let mut bytes = vec![0; usize::try_from(attr.size).unwrap()];
    let mut at = 0;
    while at < bytes.len() {
        at += fs.read(attr.ino, u64::try_from(at).unwrap(), &mut bytes[at..]).unwrap();
    }
    fs.forget(attr.ino, 1);
    bytes
}

/// One random change of a file among twelve.
fn change<L: CachedFormat>(fs: &Uhfs<L>, seed: &mut Seed) {
    let (caller, root) = (Caller::default(), fs.root());
    let name = [b'a' + u8::try_from(seed.below(12)).unwrap()];
    let Ok(found) = fs.lookup(root, &name) else {
        let made = match seed.below(4) {
            0 => fs.mkdir(&caller, root, &name, 0o755),
            1 => {
                fs.symlink(&caller, root, &name, &vec![b't'; 30 + usize::try_from(seed.below(900)).unwrap()])
            }
            _ => fs.mknod(&caller, root, &name, FILE, 0),
        };
        fs.forget(made.unwrap().attr.ino, 1);
        return;
    };
    let ino = found.attr.ino;
    match (found.attr.kind, seed.below(5)) {
        (FileKind::Regular, what @ 0..=3) => {
            let at = seed.below(40_000);
            if what < 3 {
                let len = 1 + usize::try_from(seed.below(12_000)).unwrap();
                fs.write(&caller, ino, at, &vec![name[0]; len]).unwrap();
            } else {
                fs.setattr(&caller, ino, &SetAttr { size: Some(at), ..SetAttr::default() }).unwrap();
            }
        }
        (FileKind::Directory, _) => fs.rmdir(&caller, root, &name).unwrap(),
        _ => fs.unlink(&caller, root, &name).unwrap(),
    }
    fs.forget(ino, 1);
}

/// Changes both volumes, and cuts the power again and again.
fn both_survive<I: Kind, O: Kind>(what: &str) {
    let medium = Arc::new(MemDevice::new(BLOCK, OUTER_BLOCKS));
    O::make(&*medium);
    let outer = Arc::new(opened::<O::Low>(&medium, false));
    let (caller, mut seed) = (Caller::default(), Seed::new(25));
    let file = outer.mknod(&caller, outer.root(), b"volume", FILE, 0).unwrap().attr.ino;
    let size = Some(INNER_BLOCKS * u64::from(BLOCK));
    outer.setattr(&caller, file, &SetAttr { size, ..SetAttr::default() }).unwrap();
    let inner = attached::<I, O>(&outer, file, true);
    inner.sync().unwrap();
    outer.sync().unwrap();
    let cache = Arc::clone(outer.format().cache());
    let mut written = 0;
    for round in 0..160 {
        for _ in 0..6 {
            change(&inner, &mut seed);
        }
        change(&outer, &mut seed);
        if round == 80 {
            // It moves about in what is left of the volume.
            inner.sync().unwrap();
        }
        for _ in 0..seed.below(4) {
            written += cache.step_blocks(&mut |BlockNo(_)| seed.below(3) == 0).unwrap();
        }
        cache.check_invariants();
        let what = format!("{what}, round {round}");
        let image = O::settled(medium.image(), &format!("{what}, the outer volume"));
        let below = opened::<O::Low>(&Arc::new(MemDevice::from_image(BLOCK, image)), true);
        I::settled(contents(&below, b"volume"), &format!("{what}, the inner volume"));
    }
    assert!(written > 500, "{written} blocks were written between cuts");
    let expected = (files(&inner), files(&outer));
    inner.unmount().unwrap();
    drop(inner);
    outer.unmount().unwrap();
    let below = opened::<O::Low>(&Arc::new(MemDevice::from_image(BLOCK, medium.image())), true);
    let inside = Arc::new(MemDevice::from_image(BLOCK, contents(&below, b"volume")));
    assert!((files(&opened::<I::Low>(&inside, true)), files(&below)) == expected, "{what}");
}

/// What the regular files have of those that change.
fn files<L: CachedFormat>(fs: &Uhfs<L>) -> Vec<Option<Vec<u8>>> {
    let contents = |name: u8| {
        let attr = fs.lookup(fs.root(), &[name]).ok()?.attr;
        fs.forget(attr.ino, 1);
        (attr.kind == FileKind::Regular).then(|| contents(fs, &[name]))
    };
    (b'a'..b'a' + 12).map(contents).collect()
}

#[test]
fn a_volume_in_a_file_survives_with_the_one_that_it_is_in() {
    both_survive::<Second, Fast>("ext2 in UFS2");
    both_survive::<Fast, Second>("UFS2 in ext2");
    both_survive::<Fast, Fast>("UFS2 in UFS2");
}
