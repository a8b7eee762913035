//! Check hashes, as FreeBSD 12 and later keep them, judged by a hash of our own that is taken bit by bit.
//!
//! What it prevents: a hash that is not the one of what lies beside it, at any cut, on a volume that says that it has hashes; one that is made right
//! over what is damaged; damage that a hash would have told, read as contents.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fstitch_core::{
    BlockDevice, BlockKind, BlockRead, BlockWrite, Caller, Consistency, Error, FileKind, FileSystem, Finding,
    FindingClass, Geometry, MemDevice, RepairMode, Result, Seed, SetAttr,
};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::identity::{Settings, identify, tune};
use fstitch_fs::ufs::layout::superblock::{Superblock, Version, flag, hashed};
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};

use super::damage::Image;
use super::repair::repaired;
use super::support::Scratch;
use super::written::{roomy, writable};
use super::{device, have_makefs, opened};

const HASHES: usize = 1308;
const OWN: usize = 1304;
const GROUP: usize = 128;
const INODE: usize = 244;

/// What eight steps of a shift register make of each byte: 0x82f63b78 is Castagnoli's polynomial, reversed.
fn table() -> &'static [u32; 256] {
    static TABLE: std::sync::OnceLock<[u32; 256]> = std::sync::OnceLock::new();
    TABLE.get_or_init(|| {
        std::array::from_fn(|byte| {
            let byte = u32::try_from(byte).unwrap();
            (0..8).fold(byte, |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 })
        })
    })
}

/// CRC-32C with the four bytes at `at` as zeros, begun with all bits set and not complemented at the end.
fn slow(bytes: &[u8], at: usize) -> u32 {
    let table = table();
    (0..).zip(bytes).fold(u32::MAX, |crc, (place, &byte): (usize, _)| {
        let byte = if (at..at + 4).contains(&place) { 0 } else { byte };
        crc >> 8 ^ table[usize::from(crc.to_le_bytes()[0] ^ byte)]
    })
}

fn superblock(image: &[u8]) -> Superblock {
    Superblock::read(&MemDevice::from_image(512, image.to_vec())).unwrap()
}

/// What has a wrong hash on a volume, of those that it says that it has.
fn wrong(image: &[u8]) -> Vec<String> {
    let sb = superblock(image);
    let image = Image::new(image.to_vec());
    let (kept, mut wrong) = (sb.kept_hashes(), Vec::new());
    let own = usize::try_from(sb.at).unwrap();
    let len = usize::try_from(image.word(own + 104)).unwrap();
    if kept & hashed::SUPERBLOCK != 0 && image.word(own + OWN) != slow(&image.bytes[own..own + len], OWN) {
        wrong.push("superblock".to_owned());
    }
    for no in 0..sb.groups {
        let at = image.group(no);
        let bytes = &image.bytes[at..at + usize::try_from(sb.group_size).unwrap()];
        if kept & hashed::GROUP != 0 && image.word(at + GROUP) != slow(bytes, GROUP) {
            wrong.push(format!("group {no}"));
        }
        let written = if sb.version == Version::Two { image.word(at + 120) } else { 0 };
        for ino in no * sb.group_inodes..no * sb.group_inodes + written {
            let at = image.inode(ino);
            let raw = &image.bytes[at..at + 256];
            let is_free = raw[..2] == [0, 0];
            if kept & hashed::INODE != 0 && !is_free && image.word(at + INODE) != slow(raw, INODE) {
                wrong.push(format!("inode {ino}"));
            }
        }
    }
    wrong
}

/// A volume with hashes.
fn hashed(scratch: &Scratch, shape: (u32, &str, u32, u32)) -> Vec<u8> {
    let medium = device(&roomy(scratch, shape)).unwrap();
    tune(&*medium, Settings { check_hashes: Some(true), ..Settings::default() }).unwrap();
    let image = medium.image();
    let sb = superblock(&image);
    assert_eq!(sb.kept_hashes(), 7);
    assert_eq!(wrong(&image), [""; 0], "{shape:?}");
    image
}

/// A random change of one of twelve files, or a directory's.
fn change(fs: &Uhfs<Ufs>, seed: &mut Seed) {
    let (caller, root) = (Caller::default(), fs.root());
    let name = [b'a' + u8::try_from(seed.below(12)).unwrap()];
    let Ok(found) = fs.lookup(root, &name) else {
        let made = match seed.below(3) {
            0 => fs.mkdir(&caller, root, &name, 0o755),
            _ => fs.mknod(&caller, root, &name, 0o100_644, 0),
        };
        fs.forget(made.unwrap().attr.ino, 1);
        return;
    };
    let ino = found.attr.ino;
    match (found.attr.kind, seed.below(4)) {
        (FileKind::Directory, _) => fs.rmdir(&caller, root, &name).unwrap(),
        (_, 0) => fs.unlink(&caller, root, &name).unwrap(),
        (_, 1) => {
            let size = Some(seed.below(100_000));
            fs.setattr(&caller, ino, &SetAttr { size, ..SetAttr::default() }).unwrap();
        }
        _ => {
            let len = 1 + usize::try_from(seed.below(30_000)).unwrap();
            fs.write(&caller, ino, seed.below(200_000), &vec![name[0]; len]).unwrap();
        }
    }
    fs.forget(ino, 1);
}

#[test]
fn every_cut_leaves_right_hashes_of_what_has_some() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-hashed");
    let shapes = [(2, "le", 8192, 1024), (2, "be", 32_768, 4096), (2, "le", 4096, 512)];
    for shape in shapes {
        let medium = device(&hashed(&scratch, shape)).unwrap();
        let fs = writable(Arc::<MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
        let cache = Arc::clone(fs.format().cache());
        let mut seed = Seed::new(12);
        let mut cuts = 0;
        for round in 0..30 {
            (0..4).for_each(|_| change(&fs, &mut seed));
            for _ in 0..2 {
                cuts += cache.step_blocks(&mut |_| seed.below(3) == 0).unwrap();
                let image = medium.image();
                assert_eq!(wrong(&image), [""; 0], "{shape:?}, round {round}");
                let sb = superblock(&image);
                assert_eq!((sb.kept_hashes() & 3, sb.is_unclean()), (0, true), "{shape:?}, round {round}");
            }
        }
        assert!(cuts > 50, "{cuts}");
        // The power goes: what is mended has no hashes but those of inodes.
        let (after, report) = repaired(&medium.image(), RepairMode::Preen);
        let corrupt = report.found.findings.iter().filter(|found| found.class == FindingClass::Corrupt);
        assert_eq!(corrupt.collect::<Vec<_>>(), Vec::<&Finding>::new(), "{shape:?}");
        assert!(report.left.is_clean(), "{:#?}", report.left.findings);
        assert_eq!(wrong(&after), [""; 0], "{shape:?}");
        assert_eq!(superblock(&after).kept_hashes(), hashed::INODE);
        // In memory nothing is sealed.
        let online = fs.format().check_volume().unwrap();
        assert!(online.findings.iter().all(|found| !found.code.ends_with("-hash")), "{:#?}", online.findings);
        // Or it does not.
        fs.unmount().unwrap();
        drop((fs, cache));
        let image = medium.image();
        let sb = superblock(&image);
        assert_eq!((sb.kept_hashes(), sb.is_unclean()), (sb.all_hashes(), false), "{shape:?}");
        assert_eq!(wrong(&image), [""; 0], "{shape:?}");
        let (same, report) = repaired(&image, RepairMode::Yes);
        assert!(report.found.is_clean() && same == image, "{:#?}", report.found.findings);
    }
}

/// A device on whose writes somebody looks, before each is done.
struct Watched<F> {
    medium: MemDevice,
    look: F,
}

impl<F: Fn(&MemDevice, &BlockWrite<'_>) + Send + Sync> BlockDevice for Watched<F> {
    fn geometry(&self) -> Geometry {
        self.medium.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.medium.read(reads)
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        // In any order: what is said here of one that comes last holds if it came first.
        for write in writes.iter().rev() {
            (self.look)(&self.medium, write);
            self.medium.write(std::slice::from_ref(write))?;
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        self.medium.flush()
    }
    fn discard(&self, _start: fstitch_core::BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

/// Counts the ways to tear a write of a block of the superblock, and notes those that leave a wrong hash.
fn tear(medium: &MemDevice, write: &BlockWrite<'_>, found: &Mutex<(usize, Vec<String>)>) {
    let (before, sectors) = (medium.image(), write.data.len() / 512);
    let at = write.block.index() * write.data.len();
    for (from, to) in (1..=sectors).map(|to| (0, to)).chain((1..sectors).map(|from| (from, sectors))) {
        let mut image = before.clone();
        image[at + from * 512..at + to * 512].copy_from_slice(&write.data[from * 512..to * 512]);
        let mut found = found.lock().unwrap();
        found.0 += 1;
        let wrong = wrong(&image).into_iter().filter(|what| what == "superblock");
        found.1.extend(wrong.map(|_| format!("sectors {from}..{to} of block {}", write.block)));
    }
}

#[test]
fn no_torn_superblock_has_a_wrong_hash_at_the_beginning_or_the_end() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-hashed-torn");
    for shape in [(2, "le", 32_768, 4096), (2, "be", 8192, 1024)] {
        for consistency in [Consistency::Soft, Consistency::Async] {
            let image = hashed(&scratch, shape);
            let medium = MemDevice::from_image(superblock(&image).fragment_size, image);
            let found: Arc<Mutex<(usize, Vec<String>)>> = Arc::default();
            let (torn, is_super) = (Arc::clone(&found), |kind| kind == BlockKind::Superblock);
            let look = move |medium: &MemDevice, write: &BlockWrite<'_>| {
                if is_super(write.kind) {
                    tear(medium, write, &torn);
                }
            };
            let device = Arc::new(Watched { medium, look });
            let arrangement = Arrangement { consistency: Some(consistency), ..Arrangement::default() };
            let clock = Arc::new(fstitch_core::SystemClock::new());
            let fs = arrange::open::<Ufs>(Arc::clone(&device) as Arc<dyn BlockDevice>, &arrangement, clock)
                .unwrap()
                .0;
            fs.mkdir(&Caller::default(), fs.root(), b"new", 0o755).unwrap();
            fs.unmount().unwrap();
            let found = found.lock().unwrap();
            assert!(found.0 > 8, "{}", found.0);
            assert_eq!(found.1, [""; 0], "{shape:?}, {consistency:?}");
            assert_eq!(wrong(&device.medium.image()), [""; 0]);
            assert_eq!(superblock(&device.medium.image()).kept_hashes(), 7);
        }
    }
}

#[test]
fn who_has_no_places_for_hashes_has_none() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-unhashed");
    let mut image = Image::new(roomy(&scratch, (1, "be", 8192, 1024)));
    let on = Settings { check_hashes: Some(true), ..Settings::default() };
    let medium = device(&image.bytes).unwrap();
    assert!(matches!(
        tune(&*medium, Settings { soft_updates: Some(true), ..on }),
        Err(Error::Unsupported(_))
    ));
    assert!(medium.image() == image.bytes, "it is refused as a whole");
    let own = usize::try_from(superblock(&image.bytes).at).unwrap();
    image.put32(own + HASHES, 3);
    image.put32(own + HASHES + 4, flag::HASHES_OR_QUOTA);
    let medium = device(&image.bytes).unwrap();
    let fs = writable(Arc::<MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
    fs.mkdir(&Caller::default(), fs.root(), b"new", 0o755).unwrap();
    fs.unmount().unwrap();
    let after = Image::new(medium.image());
    assert_eq!((after.word(own + HASHES), after.word(own + HASHES + 4)), (0, 0));
    let (same, report) = repaired(&after.bytes, RepairMode::Yes);
    assert!(report.found.is_clean() && same == after.bytes, "{:#?}", report.found.findings);
}

#[test]
fn labels_and_settings_keep_them_at_every_write() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-hashed-label");
    // Each looks at what the writes before it have left; some of many.
    let writes = AtomicUsize::new(0);
    let look = |medium: &MemDevice, every: usize| {
        let no = writes.fetch_add(1, Ordering::Relaxed);
        if !no.is_multiple_of(every) {
            return;
        }
        let image = medium.image();
        assert_eq!(wrong(&image), [""; 0], "before write {no}");
        let sb = superblock(&image);
        // That would be quotas of NetBSD.
        assert!(sb.flags & flag::HASHES_OR_QUOTA == 0 || sb.hashes != 0, "before write {no}");
    };
    let medium = MemDevice::from_image(512, hashed(&scratch, (2, "le", 8192, 1024)));
    let device = Watched { medium, look: |medium: &MemDevice, _: &BlockWrite<'_>| look(medium, 1) };
    identify(&device, Some(b"sums"), Some([1, 2])).unwrap();
    tune(&device, Settings { soft_updates: Some(true), reserved: Some(3), ..Settings::default() }).unwrap();
    let label = device.medium.image();
    assert_eq!(wrong(&label), [""; 0]);
    let sb = superblock(&label);
    assert_eq!((sb.kept_hashes(), &sb.label[..], sb.flags & flag::SOFTDEP), (7, &b"sums"[..], flag::SOFTDEP));
    tune(&device, Settings { check_hashes: Some(false), ..Settings::default() }).unwrap();
    assert_eq!(superblock(&device.medium.image()).kept_hashes(), 0);
    assert!(writes.load(Ordering::Relaxed) > 6);
    // What says that groups have some goes before they do, and comes when all have.
    let medium = MemDevice::from_image(512, roomy(&scratch, (2, "be", 16_384, 2048)));
    let device = Watched { medium, look: |medium: &MemDevice, _: &BlockWrite<'_>| look(medium, 11) };
    for _ in 0..2 {
        tune(&device, Settings { check_hashes: Some(true), ..Settings::default() }).unwrap();
        assert_eq!(wrong(&device.medium.image()), [""; 0]);
    }
}

fn corrupt<T>(result: Result<T>) -> String {
    match result {
        Err(Error::Corrupt(corruption)) => corruption.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("nobody looks"),
    }
}

#[test]
fn a_wrong_hash_of_an_inode_is_found_refused_and_stays() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-hashed-inode");
    let caller = Caller::default();
    let medium = device(&hashed(&scratch, (2, "le", 32_768, 4096))).unwrap();
    let fs = writable(Arc::<MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
    let made: Vec<_> = (b'a'..b'f')
        .map(|name| fs.mknod(&caller, fs.root(), &[name], 0o100_644, 0).unwrap().attr.ino)
        .collect();
    fs.unmount().unwrap();
    drop(fs);
    let mut image = Image::new(medium.image());
    let victim = image.inode(u32::try_from(made[2].0).unwrap());
    // Its owner.
    image.bytes[victim + 4] ^= 1;
    assert_eq!(wrong(&image.bytes), [format!("inode {}", made[2].0)]);
    let before = image.bytes[victim..victim + 256].to_vec();
    let on = Settings { check_hashes: Some(true), ..Settings::default() };
    assert!(corrupt(tune(&*device(&image.bytes).unwrap(), on)).contains("check hash"), "nor by that");
    let read = opened(&image.bytes).unwrap();
    let said = read.lookup(read.root(), b"c").map(drop);
    assert!(format!("{}", said.unwrap_err()).contains("check hash"));
    assert!(read.lookup(read.root(), b"b").is_ok());
    let medium = device(&image.bytes).unwrap();
    let fs = writable(Arc::<MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
    let next = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
    fs.write(&caller, next, 0, b"beside it").unwrap();
    fs.unmount().unwrap();
    let after = medium.image();
    assert_eq!(after[victim..victim + 256], before, "what is wrong must not look right");
    assert_eq!(wrong(&after), [format!("inode {}", made[2].0)]);
    let (mended, report) = repaired(&after, RepairMode::Yes);
    assert!(report.found.findings.iter().any(|found| found.code == "inode-hash"), "{:#?}", report.found);
    assert!(report.left.is_clean() && wrong(&mended).is_empty());
    let fs = opened(&mended).unwrap();
    assert!(fs.lookup(fs.root(), b"c").is_ok());
}

#[test]
fn wrong_hashes_of_groups_and_superblock_are_found_and_refused() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-hashed-group");
    let caller = Caller::default();
    let healthy = hashed(&scratch, (2, "be", 8192, 1024));
    let mut image = Image::new(healthy.clone());
    // A rotor, which means nothing.
    let at = image.group(0) + 40;
    image.bytes[at] ^= 1;
    let fs = writable(device(&image.bytes).unwrap() as Arc<dyn BlockDevice>);
    let made = fs.mknod(&caller, fs.root(), b"new", 0o100_644, 0).map(drop);
    assert!(corrupt(made).contains("check hash"));
    drop(fs);
    let (mended, report) = repaired(&image.bytes, RepairMode::Yes);
    assert!(report.found.findings.iter().any(|found| found.code == "group-hash"), "{:#?}", report.found);
    assert!(report.left.is_clean(), "{:#?}", report.left);
    assert_eq!((superblock(&mended).kept_hashes(), wrong(&mended)), (hashed::INODE, vec![]));
    // And the name of the volume.
    let mut image = Image::new(healthy);
    let at = usize::try_from(superblock(&image.bytes).at).unwrap() + 680;
    image.bytes[at] ^= 1;
    let open = arrange::open::<Ufs>(
        device(&image.bytes).unwrap(),
        &Arrangement::default(),
        Arc::new(fstitch_core::SystemClock::new()),
    );
    assert!(corrupt(open.map(drop)).contains("check hash"));
    assert!(opened(&image.bytes).is_ok(), "for reading");
    let label = identify(&*device(&image.bytes).unwrap(), Some(b"right"), None);
    assert!(corrupt(label).contains("check hash"));
    let (mended, report) = repaired(&image.bytes, RepairMode::Yes);
    assert!(report.found.findings.iter().any(|found| found.code == "superblock-hash"), "{:#?}", report.found);
    assert!(report.left.is_clean() && wrong(&mended).is_empty());
    writable(device(&mended).unwrap() as Arc<dyn BlockDevice>).unmount().unwrap();
}

#[test]
fn hashes_of_what_nobody_knows_are_given_up() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-hashed-more");
    let mut image = Image::new(hashed(&scratch, (2, "le", 8192, 1024)));
    let own = usize::try_from(superblock(&image.bytes).at).unwrap();
    image.put32(own + HASHES, 31);
    let len = usize::try_from(image.word(own + 104)).unwrap();
    let sum = slow(&image.bytes[own..own + len], OWN);
    image.put32(own + OWN, sum);
    let medium = device(&image.bytes).unwrap();
    let fs = writable(Arc::<MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
    fs.mkdir(&Caller::default(), fs.root(), b"new", 0o755).unwrap();
    fs.unmount().unwrap();
    let after = Image::new(medium.image());
    assert_eq!((after.word(own + HASHES), wrong(&after.bytes)), (7, vec![]));
}
