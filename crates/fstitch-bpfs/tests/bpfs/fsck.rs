//! The checker of volumes that nobody has open: it finds nothing where nothing is wrong, what is wrong where something is, and leaves behind
//! what a mount accepts.
//!
//! What it prevents: damage that nobody is told of, a repair that makes it worse, a panic or a hang on any bytes.
//!
//! `FSTITCH_BPFS_FSCK=0..10000` damages so many images.

use std::sync::Arc;

use crate::on_device::{device, on_device, open};
use crate::support::{CALLER, clock, create};
use fstitch_bpfs::{Bpfs, Durability, Options, fsck};
use fstitch_core::num::to_u64;
use fstitch_core::{
    FileSystem, InodeNo, Le, MemDevice, RepairMode, RepairOptions, RepairReport, Result, Seed, Timestamp,
    XattrSetMode,
};

fn check(device: &Arc<MemDevice>, mode: RepairMode) -> Result<RepairReport> {
    let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
    fsck(Arc::<MemDevice>::clone(device), RepairOptions { mode, now })
}

/// A volume with all that there is, unmounted; the inodes of a directory, a file in it, and a large one.
fn filled() -> (Arc<MemDevice>, [u64; 3]) {
    let made = device(2 << 20, 16);
    let fs = open(&made, on_device(Durability::Process));
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    let file = create(&fs, dir, b"file");
    fs.write(&CALLER, file, 100, &[7; 5000]).unwrap();
    fs.setxattr(&CALLER, file, b"user.a", &[1; 100], XattrSetMode::Set).unwrap();
    let large = create(&fs, fs.root(), b"large");
    fs.write(&CALLER, large, 0, &vec![9; 300_000]).unwrap();
    for number in 0..40 {
        create(&fs, dir, format!("one-of-many-{number}").as_bytes());
    }
    let link = fs.symlink(&CALLER, dir, b"link", b"to").unwrap().attr.ino;
    fs.forget(link, 1);
    fs.link(&CALLER, file, fs.root(), b"other").unwrap();
    fs.unmount().unwrap();
    (made, [dir.get(), file.get(), large.get()])
}

/// Where an inode's words are: there is one block of inodes behind the other in a volume as small as this.
fn inode(image: &[u8], ino: u64) -> usize {
    let top = Le::u64(image, 128);
    let block = match top & 7 {
        0 => top >> 3,
        _ => Le::u64(image, usize::try_from((top >> 3) * 4096 + ino / 32 * 8).unwrap()) >> 3,
    };
    usize::try_from(block * 4096 + ino % 32 * 128).unwrap()
}

fn changed(device: &Arc<MemDevice>, at: usize, word: u64) -> Arc<MemDevice> {
    let mut image = device.image();
    Le::put_u64(&mut image, at, word);
    Arc::new(MemDevice::from_image(512, image))
}

/// It is found, mended, and a mount agrees.
fn is_mended(damaged: &Arc<MemDevice>, code: &str) {
    let before = damaged.image();
    let found = check(damaged, RepairMode::No).unwrap();
    let codes: Vec<_> = found.found.findings.iter().map(|finding| finding.code).collect();
    assert!(codes.contains(&code), "{code} is not among {codes:?}");
    assert!(damaged.image() == before && found.mended == 0 && !found.left.is_clean());
    let mended = check(damaged, RepairMode::Yes).unwrap();
    assert!(mended.mended > 0 && mended.left.is_clean(), "{code}: {mended:?}");
    let again = check(damaged, RepairMode::No).unwrap();
    assert!(again.found.is_clean(), "{code}: {again:?}");
    let fs = open(damaged, on_device(Durability::Process));
    crate::support::check(&fs);
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let (device, _) = filled();
    let report = check(&device, RepairMode::No).unwrap();
    assert!(report.found.is_clean() && report.left.is_clean() && report.mended == 0, "{report:?}");
}

#[test]
fn what_is_wrong_is_found_and_mended() {
    let (device, [dir, file, large]) = filled();
    let image = device.image();
    let word = |at: usize| Le::u64(&image, at);
    let (root_of_large, root_of_file) = (inode(&image, large) + 24, inode(&image, file) + 24);
    is_mended(&changed(&device, root_of_large, word(root_of_file)), "pointer");
    is_mended(&changed(&device, root_of_large, 1 << 40), "pointer");
    is_mended(&changed(&device, root_of_large, word(root_of_large) | 7), "height");
    is_mended(&changed(&device, inode(&image, dir) + 16, 5000), "size");
    is_mended(&changed(&device, inode(&image, large) + 16, 1 << 60), "size");
    is_mended(&changed(&device, inode(&image, file) + 72, word(root_of_large)), "pointer");
    is_mended(&changed(&device, inode(&image, file), 0), "dangling-name");
    let entries = inode(&image, dir) + 24;
    let block = usize::try_from((word(entries) >> 3) * 4096).unwrap();
    is_mended(&changed(&device, block, word(block) & !0xffff | 12), "entry");
    is_mended(&changed(&device, block, dir << 16 | word(block) & 0xffff), "directory-names");
    is_mended(&changed(&device, block, 9999 << 16 | word(block) & 0xffff), "dangling-name");
    is_mended(&changed(&device, block + 8, 4), "name");
    let name = b"one-of-many-10";
    let at = image[block..block + 4096].windows(name.len()).position(|bytes| bytes == name).unwrap();
    let mut twice = image.clone();
    twice[block + at..][..name.len()].copy_from_slice(b"one-of-many-11");
    is_mended(&Arc::new(MemDevice::from_image(512, twice)), "name-twice");
    is_mended(&changed(&device, entries, 0), "directory-block");
    is_mended(&changed(&device, inode(&image, file) + 32, u64::MAX >> 2), "time");
    let xattrs = usize::try_from((word(inode(&image, file) + 72) >> 3) * 4096).unwrap();
    is_mended(&changed(&device, xattrs, 3), "attributes");
    is_mended(&changed(&device, 24, 3), "superblock");
    is_mended(&changed(&device, 4096 + 24, 3), "superblock-copy");
}

/// Of a block that is used twice, the one file's end would free what the other one has.
#[test]
fn a_mount_refuses_a_block_that_two_files_have() {
    let (device, [_, file, large]) = filled();
    let image = device.image();
    let root = |ino| inode(&image, ino) + 24;
    let damaged = changed(&device, root(large), Le::u64(&image, root(file)));
    let error = Bpfs::open_on(damaged, on_device(Durability::Process), clock()).unwrap_err();
    assert!(error.to_string().contains("is used twice"), "{error}");
}

/// Two pointers of one tree, beside each other and with another between.
#[test]
fn a_mount_refuses_a_block_that_a_file_has_twice() {
    let (device, [_, _, large]) = filled();
    let image = device.image();
    let top = usize::try_from((Le::u64(&image, inode(&image, large) + 24) >> 3) * 4096).unwrap();
    for (one, other) in [(3, 4), (3, 9), (0, 70)] {
        let damaged = changed(&device, top + 8 * other, Le::u64(&image, top + 8 * one));
        let error = Bpfs::open_on(damaged, on_device(Durability::Process), clock()).unwrap_err();
        assert!(error.to_string().contains("is used twice"), "{one} and {other}: {error}");
    }
}

#[test]
fn a_mount_refuses_a_tree_that_is_too_high_though_it_has_no_blocks() {
    let (device, [_, _, large]) = filled();
    for word in [24, 72] {
        let damaged = changed(&device, inode(&device.image(), large) + word, 7);
        let error = Bpfs::open_on(damaged, on_device(Durability::Process), clock()).unwrap_err();
        assert!(error.to_string().contains("higher than any"), "{error}");
    }
}

/// Trees of many files are looked at by several threads, which find the same as one.
#[test]
fn a_mount_of_many_files_sees_what_each_of_them_has() {
    const FILES: u64 = 3000;
    let made = device(32 << 20, 64);
    let fs = open(&made, on_device(Durability::Process));
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    let file = |number: u64| {
        let ino = create(&fs, dir, format!("file-{number}").as_bytes());
        fs.write(&CALLER, ino, number % 3 * 4096, &[7; 100]).unwrap();
        if number.is_multiple_of(7) {
            fs.setxattr(&CALLER, ino, b"user.a", &[1; 100], XattrSetMode::Set).unwrap();
        }
        ino.get()
    };
    let inodes: Vec<u64> = (0..FILES).map(file).collect();
    let seen = |fs: &Bpfs, ino: &u64| fs.getattr(InodeNo(*ino)).unwrap();
    let before: Vec<_> = inodes.iter().map(|ino| seen(&fs, ino)).collect();
    fs.unmount().unwrap();
    drop(fs);
    let fs = open(&made, on_device(Durability::Process));
    assert!(inodes.iter().map(|ino| seen(&fs, ino)).eq(before));
    crate::support::check(&fs);
    drop(fs);
    let image = made.image();
    let root = |number: usize| inode(&image, inodes[number]) + 24;
    for (one, other) in [(0, 2997), (2996, 2999), (1, 3)] {
        let damaged = changed(&made, root(one), Le::u64(&image, root(other)));
        let error = Bpfs::open_on(damaged, on_device(Durability::Process), clock()).unwrap_err();
        assert!(error.to_string().contains("is used twice"), "{one} and {other}: {error}");
    }
}

#[test]
fn a_log_that_cannot_be_read_is_made_anew() {
    let (device, _) = filled();
    let mut image = device.image();
    let log = image.len() - 16 * 4096;
    image[log..log + 8192].fill(0xee);
    let damaged = Arc::new(MemDevice::from_image(512, image));
    assert!(Bpfs::open_on(Arc::<MemDevice>::clone(&damaged), Options::default(), clock()).is_err());
    is_mended(&damaged, "log");
}

#[test]
fn what_cannot_be_mended_is_refused() {
    let (device, _) = filled();
    let image = device.image();
    let top = changed(&device, 128, 0);
    let report = check(&top, RepairMode::Yes).unwrap();
    assert_eq!(report.left.findings[0].code, "inode-file");
    let root = changed(&device, inode(&image, 1), 0);
    let report = check(&root, RepairMode::Yes).unwrap();
    assert_eq!(report.left.findings[0].code, "root");
    let mut both = image;
    both[20] ^= 1;
    both[4096 + 20] ^= 1;
    let both = Arc::new(MemDevice::from_image(512, both));
    assert!(check(&both, RepairMode::Yes).unwrap_err().to_string().contains("sum"));
}

#[test]
fn preening_does_what_a_cut_leaves_and_nothing_else() {
    let (device, [dir, ..]) = filled();
    let image = device.image();
    let copy = changed(&device, 4096 + 24, 3);
    let report = check(&copy, RepairMode::Preen).unwrap();
    assert!(report.mended == 1 && report.left.is_clean() && report.found.corrupt == 0);
    let size = changed(&device, inode(&image, dir) + 16, 5000);
    let before = size.image();
    let report = check(&size, RepairMode::Preen).unwrap();
    assert!(report.mended == 0 && report.left.corrupt == 1 && size.image() == before);
}

#[test]
fn damage_of_any_kind_is_refused_or_mended() {
    let range = std::env::var("FSTITCH_BPFS_FSCK").unwrap_or_else(|_| "0..300".to_owned());
    let (first, end) = range.split_once("..").unwrap();
    let (good, _) = filled();
    // Where something stands that is not the contents of a file: damage elsewhere is no damage.
    let good_image = good.image();
    let counts =
        |at: &usize| ![0, 0x0707_0707_0707_0707, 0x0909_0909_0909_0909].contains(&Le::u64(&good_image, *at));
    let words: Vec<usize> = (0..110 * 4096).step_by(8).filter(counts).collect();
    let (mut refused, mut mended) = (0, 0);
    for number in first.parse::<u64>().unwrap()..end.parse().unwrap() {
        let (mut image, mut seed) = (good.image(), Seed::new(number));
        for _ in 0..=seed.below(3) {
            // Or in what is free behind it.
            let at = words[usize::try_from(seed.below(to_u64(words.len()))).unwrap()];
            let at = if seed.below(8) == 0 { at + 8 } else { at };
            match seed.below(3) {
                0 => image[at] ^= 1 << seed.below(8),
                1 => Le::put_u64(&mut image, at, seed.next_u64() >> seed.below(64)),
                _ => Le::put_u64(&mut image, at, seed.below(300) << 3),
            }
        }
        let damaged = Arc::new(MemDevice::from_image(512, image));
        let Ok(report) = check(&damaged, RepairMode::Yes) else {
            refused += 1;
            continue;
        };
        if !report.left.is_clean() {
            let lost = ["inode-file", "root", "target"];
            let is_lost = report.left.findings.iter().any(|finding| lost.contains(&finding.code));
            assert!(is_lost, "image {number}: {report:?}");
            refused += 1;
            continue;
        }
        mended += u64::from(report.mended > 0);
        let options = Options { read_only: false, ..on_device(Durability::Process) };
        let fs = Bpfs::open_on(Arc::<MemDevice>::clone(&damaged), options, clock());
        let fs = fs.unwrap_or_else(|error| panic!("image {number}: {error} after {report:?}"));
        let found = fs.check().unwrap();
        assert!(found.is_clean(), "image {number}: {found:?} after {report:?}");
    }
    println!("{refused} refused, {mended} mended");
    assert!(refused > 0 && mended > 0);
}
