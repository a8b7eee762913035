//! UFS volumes of makefs that were changed: read again by us, by the checker and by sleuthkit.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use fstitch_core::{
    BlockDevice, Caller, FileKind, FileSystem, InodeNo, RepairMode, SetAttr, SetTime, SystemClock, Timestamp,
};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::layout::superblock::{Superblock, flag};
use fstitch_fs::uhfs::Uhfs;

use super::host::{Tree, fill};
use super::repair::repaired;
use super::support::{Scratch, run};
use super::{checked, device, have_makefs, opened, shapes};

/// Bytes of a piece in which files are written: ends of files grow again and again.
const PIECE: usize = 3000;

/// A volume of makefs with room for what comes.
pub fn roomy(scratch: &Scratch, (version, order, block, fragment): (u32, &str, u32, u32)) -> Vec<u8> {
    let from = scratch.path("nothing");
    fs::create_dir_all(&from).unwrap();
    let path = scratch.path(&format!("{version}{order}{block}{fragment}.img"));
    let options = format!("version={version},bsize={block},fsize={fragment}");
    let (image, from) = (path.to_str().unwrap(), from.to_str().unwrap());
    let (code, said) =
        run("makefs", &["-t", "ffs", "-B", order, "-o", &options, "-s", "48m", "-f", "900", image, from]);
    assert_eq!(code, 0, "{said}");
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(path).unwrap();
    bytes
}

pub fn writable(device: Arc<dyn BlockDevice>) -> Uhfs<Ufs> {
    arrange::open::<Ufs>(device, &Arrangement::default(), Arc::new(SystemClock::new())).unwrap().0
}

/// Copies a tree of the host to a volume, files piece by piece.
fn copy(fs: &dyn FileSystem, from: &Path, dir: InodeNo) {
    let caller = Caller::default();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, name) = (entry.path(), entry.file_name());
        let (name, found) = (name.as_bytes(), path.symlink_metadata().unwrap());
        let perm = u16::try_from(found.permissions().mode() & 0o7777).unwrap();
        let made = if found.is_dir() {
            let made = fs.mkdir(&caller, dir, name, perm).unwrap().attr.ino;
            copy(fs, &path, made);
            made
        } else if found.is_symlink() {
            fs.symlink(&caller, dir, name, fs::read_link(&path).unwrap().as_os_str().as_bytes())
                .unwrap()
                .attr
                .ino
        } else {
            let made =
                fs.mknod(&caller, dir, name, FileKind::Regular.mode_bits() | perm, 0).unwrap().attr.ino;
            let bytes = fs::read(&path).unwrap();
            for (turn, piece) in bytes.chunks(PIECE).enumerate() {
                fs.write(&caller, made, u64::try_from(turn * PIECE).unwrap(), piece).unwrap();
            }
            made
        };
        let time = found.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        let at = SetTime::At(Timestamp { secs: i64::try_from(time).unwrap(), nanos: 0 });
        fs.setattr(&caller, made, &SetAttr { perm: Some(perm), mtime: Some(at), ..SetAttr::default() })
            .unwrap();
        fs.forget(made, 1);
    }
}

/// Every regular file of the image by sleuthkit is the host's.
fn judged_by_sleuthkit(image: &Path, from: &Path) -> usize {
    let Ok(listed) = Command::new("fls").args(["-f", "ufs", "-r", "-p", "-F"]).arg(image).output() else {
        println!("skipped: sleuthkit is not installed");
        return 0;
    };
    let mut count = 0;
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let Some((kind, path)) = line.split_once('\t') else { continue };
        let Some(ino) = kind.strip_prefix("r/r ").map(|ino| ino.trim_end_matches(':')) else { continue };
        let contents = Command::new("icat").args(["-f", "ufs"]).arg(image).arg(ino).output().unwrap();
        assert!(contents.stdout == fs::read(from.join(path)).unwrap(), "{}: {path}", image.display());
        count += 1;
    }
    count
}

#[test]
fn what_is_written_reads_as_it_was_put_there() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-written");
    let from = scratch.path("from");
    fill(&from);
    // Names are links there; each is a file of its own here.
    fs::remove_file(from.join("deep/er/again")).unwrap();
    symlink("../long", from.join("deep/er/again")).unwrap();
    let expected = Tree::of_host(&from);
    let mut judged = 0;
    for shape in shapes() {
        let name = format!("{shape:?}");
        let bytes = roomy(&scratch, shape);
        let medium = device(&bytes).unwrap();
        let fs = writable(Arc::<fstitch_core::MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
        copy(&fs, &from, fs.root());
        fs.unmount().unwrap();
        let image = medium.image();
        let report = checked(&image).unwrap();
        assert!(report.is_clean(), "{name}: {:#?}", report.findings);
        Tree::of(&opened(&image).unwrap()).unwrap().expect(&expected, &name);
        // Superblocks of UFS2 at 8192, where makefs has them, are found by few; those of UFS1 are where they should be.
        if shape.0 == 1 && shape.2 == 8192 {
            let path = scratch.path("judged.img");
            fs::write(&path, &image).unwrap();
            judged += judged_by_sleuthkit(&path, &from);
        }
        let fs = writable(Arc::<fstitch_core::MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
        empty(&fs, fs.root());
        fs.unmount().unwrap();
        let image = medium.image();
        assert!(checked(&image).unwrap().is_clean(), "{name}, emptied");
        let count = |image: &[u8]| {
            let free = opened(image).unwrap().statfs().unwrap();
            (free.blocks_free, free.inodes_free)
        };
        let root = u64::from(Superblock::read(&*medium).unwrap().fragment_size);
        let (before, after) = (count(&bytes), count(&image));
        // The root directory keeps the length that it grew to.
        assert!(before.1 == after.1 && before.0 - after.0 <= 65_536 / root, "{name}: {before:?} {after:?}");
    }
    assert!(judged == 0 || judged > 500, "{judged}");
}

fn empty(fs: &dyn FileSystem, dir: InodeNo) {
    let caller = Caller::default();
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
        let attr = fs.lookup(dir, &name).unwrap().attr;
        if attr.kind == FileKind::Directory {
            empty(fs, attr.ino);
            fs.rmdir(&caller, dir, &name).unwrap();
        } else {
            fs.unlink(&caller, dir, &name).unwrap();
        }
        fs.forget(attr.ino, 1);
    }
}

/// Puts 32 bits, in the volume's order, into the superblock of an image.
fn put(image: &mut [u8], at: usize, value: u32, order: &str) {
    let place = 8192 + at;
    let bytes = if order == "be" { value.to_be_bytes() } else { value.to_le_bytes() };
    image[place..place + 4].copy_from_slice(&bytes);
}

#[test]
fn what_cannot_be_kept_right_is_refused_by_name() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-refused");
    let fresh = roomy(&scratch, (2, "be", 8192, 1024));
    let old = roomy(&scratch, (1, "be", 8192, 1024));
    let flags_at = 1312;
    for (at, value, said) in [
        (1116, 7, "snapshots"),
        (flags_at, flag::GJOURNAL, "gjournal"),
        (flags_at, flag::SUJ | flag::UNCLEAN, "journal of soft updates"),
        // NetBSD's own word for use is the mark of an orderly end, shifted.
        (208, 0x0002_0000, "fsck -p"),
        (flags_at, flag::HASHES_OR_QUOTA, "quotas"),
        (flags_at, flag::NEEDS_FSCK, "fsck -p"),
        // The fourth byte says in UFS1 that the superblock is one of FreeBSD 5, or later.
        (208, 0x0001_0000, "FreeBSD 5"),
    ] {
        let mut image = if said == "FreeBSD 5" { old.clone() } else { fresh.clone() };
        put(&mut image, at, value, "be");
        let refused = arrange::open::<Ufs>(
            device(&image).unwrap(),
            &Arrangement::default(),
            Arc::new(SystemClock::new()),
        );
        let text = refused.err().unwrap_or_else(|| panic!("{said}")).to_string();
        assert!(text.contains(said) && text.contains("read-only"), "{text}");
        assert!(opened(&image).is_ok(), "{said}");
    }
    // NetBSD's journal, of a volume that says to be clean as well; its flag is another one on FreeBSD, which has no place for a journal.
    for (flags, use_word, log, said) in [
        (flag::NFS4_ACLS_OR_WAPBL, 0x0001_0000, 0x0102_0000, Some("WAPBL")),
        (flag::NFS4_ACLS_OR_WAPBL, 0x0002_0000, 0x0101_0000, Some("WAPBL")),
        (flag::NFS4_ACLS_OR_WAPBL, 0x0000_0000, 0, Some("fsck -p")),
        (flag::NFS4_ACLS_OR_WAPBL, 0x0001_0080, 0, None),
    ] {
        let mut image = fresh.clone();
        put(&mut image, flags_at, flags, "be");
        // With the bit that says that these are the flags.
        put(&mut image, 208, use_word | 0x80, "be");
        put(&mut image, 864, log, "be");
        let done = arrange::open::<Ufs>(
            device(&image).unwrap(),
            &Arrangement::default(),
            Arc::new(SystemClock::new()),
        );
        match (done, said) {
            (Ok(_), None) => {}
            (Err(error), Some(said)) => assert!(error.to_string().contains(said), "{error}"),
            (done, said) => panic!("{said:?}, {:?}", done.err()),
        }
    }
}

/// What kills under hard links found: names in a tree that preening brings back were not counted when it lowered link counts, and the next
/// run took the count for damage.
#[test]
fn names_in_a_lost_directory_count_before_links_are_mended() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-lost-links");
    let caller = Caller::default();
    for shape in [(1, "be", 8192, 1024), (2, "le", 8192, 1024)] {
        let medium = device(&roomy(&scratch, shape)).unwrap();
        let fs = writable(Arc::<fstitch_core::MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
        let file = |dir: InodeNo, name: &[u8]| {
            let made =
                fs.mknod(&caller, dir, name, FileKind::Regular.mode_bits() | 0o644, 0).unwrap().attr.ino;
            fs.write(&caller, made, 0, name).unwrap();
            made
        };
        let lost = fs.mkdir(&caller, fs.root(), b"the-lost-directory", 0o755).unwrap().attr.ino;
        file(lost, b"only-here");
        for number in 0..20 {
            let name = format!("file-{number}");
            let made = file(fs.root(), name.as_bytes());
            fs.link(&caller, made, lost, name.as_bytes()).unwrap();
            fs.link(&caller, made, lost, format!("again-{number}").as_bytes()).unwrap();
        }
        fs.unmount().unwrap();
        let mut image = medium.image().clone();
        let name = b"the-lost-directory";
        let at = image.windows(name.len()).position(|bytes| bytes == name).unwrap();
        // Its entry names nothing any more.
        image[at - 8..at - 4].fill(0);
        let (after, report) = repaired(&image, RepairMode::Preen);
        assert!(report.left.is_clean(), "{shape:?}: {:#?}", report.left.findings);
        let fs = opened(&after).unwrap();
        let root = fs.root();
        assert_eq!(fs.lookup(root, b"file-7").unwrap().attr.nlink, 3, "{shape:?}");
        let found = fs.lookup(root, b"lost+found").unwrap().attr.ino;
        let mut names = Vec::new();
        fs.readdir(found, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
        assert!(names.iter().any(|name| name.starts_with(b"#")), "{shape:?}: {names:?}");
    }
}

/// What a reviewer broke: metadata that is called free went to files, maps that overlap gave numbers away that were in use, counts were written
/// to wherever they were said to be. The volume says that it is clean, so nobody has looked before.
#[test]
fn damage_of_a_clean_volume_ends_in_an_error() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-own");
    let fresh = roomy(&scratch, (2, "le", 8192, 1024));
    let shape = Superblock::read(&*device(&fresh).unwrap()).unwrap();
    let group = usize::try_from(shape.parts[1] * shape.fragment_size).unwrap();
    let word = |image: &[u8], at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let caller = Caller::default();
    let refused = |image: &[u8]| {
        let fs = writable(device(image).unwrap());
        let made = fs.mknod(&caller, fs.root(), b"new", FileKind::Regular.mode_bits() | 0o644, 0);
        let done = made.and_then(|made| fs.write(&caller, made.attr.ino, 0, &[0x5a; 300_000]));
        done.expect_err("refused").to_string()
    };
    let (used_at, free_at) = (word(&fresh, group + 92), word(&fresh, group + 96));
    let mut image = fresh.clone();
    let free_map = group + usize::try_from(free_at).unwrap();
    image[free_map..free_map + 64].fill(0xff);
    assert!(refused(&image).contains("which is metadata, is called free"));
    assert_ne!(used_at, free_at);
    let mut image = fresh.clone();
    image[group + 92..group + 96].copy_from_slice(&(free_at + 100).to_le_bytes());
    assert!(refused(&image).contains("its maps overlap"));
    for place in [u64::MAX, shape.fragments - 1, 0] {
        let mut image = fresh.clone();
        let at = usize::try_from(shape.at).unwrap() + 1096;
        image[at..at + 8].copy_from_slice(&place.to_le_bytes());
        if place == shape.fragments - 1 {
            // It could lie there; but what does is something else, and stays.
            let medium = device(&image).unwrap();
            let fs = writable(Arc::<fstitch_core::MemDevice>::clone(&medium) as Arc<dyn BlockDevice>);
            let made = fs.mkdir(&caller, fs.root(), b"new", 0o755);
            assert!(made.is_err(), "its fragment is called free");
            continue;
        }
        let arrangement = Arrangement::default();
        let opened =
            arrange::open::<Ufs>(device(&image).unwrap(), &arrangement, Arc::new(SystemClock::new()));
        assert!(opened.err().expect("refused").to_string().contains("the counts of"), "{place}");
    }
}

/// The lengths that other systems take for damage are not given to files.
#[test]
fn no_file_is_longer_than_all_systems_take() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-long");
    let (one, two) = (roomy(&scratch, (1, "be", 8192, 1024)), roomy(&scratch, (2, "le", 8192, 1024)));
    for (image, most) in [(one, Some((0x4000_0000_u64 * 8192) - 1)), (two, None)] {
        let shape = Superblock::read(&*device(&image).unwrap()).unwrap();
        assert!(shape.file_max() < shape.size_max() && shape.file_max() <= shape.says_max);
        assert!(most.is_none_or(|most| shape.file_max() <= most));
        let fs = writable(device(&image).unwrap());
        let caller = Caller::default();
        let made = fs.mknod(&caller, fs.root(), b"long", FileKind::Regular.mode_bits() | 0o644, 0).unwrap();
        let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        let refused = fs.setattr(&caller, made.attr.ino, &size(shape.file_max() + 1));
        assert_eq!(refused.unwrap_err().errno(), fstitch_core::Errno::FBIG);
        fs.setattr(&caller, made.attr.ino, &size(shape.file_max())).unwrap();
    }
}

/// A file that ends where a tree of pointers begins keeps none of it: all is free again.
#[test]
fn a_file_that_is_cut_where_a_tree_begins_keeps_none_of_it() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-cut-at-trees");
    for shape in [(1, "be", 4096, 512), (2, "le", 4096, 4096)] {
        let what = format!("{shape:?}");
        let device = device(&roomy(&scratch, shape)).unwrap();
        let fs = writable(Arc::clone(&device) as _);
        let (caller, block) = (Caller::default(), 4096);
        let pointers = block / if shape.0 == 1 { 4 } else { 8 };
        let ino = fs.mknod(&caller, fs.root(), b"f", 0o100_644, 0).unwrap().attr.ino;
        let used = |fs: &Uhfs<Ufs>| fs.statfs().unwrap().blocks_free;
        for keeps in [12, 12 + pointers] {
            let cut = |blocks: u64| {
                let size = SetAttr { size: Some(blocks * block), ..SetAttr::default() };
                fs.setattr(&caller, ino, &size).unwrap();
                fs.sync().unwrap();
            };
            (0..keeps).for_each(|no| {
                fs.write(&caller, ino, no * block, &[7; 4096]).unwrap();
            });
            fs.sync().unwrap();
            let before = used(&fs);
            fs.write(&caller, ino, (keeps + 1) * block, &[8; 4096]).unwrap();
            fs.sync().unwrap();
            assert!(used(&fs) < before, "{what}");
            cut(keeps);
            assert_eq!(used(&fs), before, "{what}: {keeps} blocks");
        }
        fs.unmount().unwrap();
        assert!(checked(&device.image()).unwrap().is_clean(), "{what}");
    }
}
