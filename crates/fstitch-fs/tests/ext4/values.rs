//! Values of attributes in inodes of their own: one that is lost, freed while another file has it, or left when its last file is gone; one of ours
//! that the kernel does not read; an entry that refers to none, after a failure or by damage.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockWrite, Caller, Consistency, Errno, FallocateMode, FileKind,
    FileSystem, InodeNo, ManualClock, MemDevice, Result, Seed, SetAttr, XattrSetMode,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{BATCH_MAX, Options, Recovered, recover};
use fstitch_fs::uhfs::LowLevelFs;

use super::cut::{Cut, Lossy, is_thorough};
use super::kernel;
use super::support::{Scratch, have, run};
use super::tree::{Tree, bytes};
use super::{NOW, device, e2fsck_is_content, made, mounted, recovered};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
const MODES: [Consistency; 3] = [Consistency::Ordered, Consistency::Metadata, Consistency::Full];
/// What `mke2fs -t ext4` is told.
const SHAPES: [&[&str]; 5] = [
    &["-O", "ea_inode", "-b", "1024"],
    &["-O", "ea_inode", "-b", "4096"],
    &["-O", "ea_inode,inline_data,^metadata_csum", "-b", "1024", "-I", "512"],
    &["-O", "ea_inode,metadata_csum_seed", "-b", "2048"],
    &["-O", "ea_inode,^extent,^64bit", "-b", "1024", "-I", "128"],
];

fn create(fs: &dyn FileSystem, name: &str) -> InodeNo {
    let mode = FileKind::Regular.mode_bits() | 0o644;
    let ino = fs.mknod(&CALLER, fs.root(), name.as_bytes(), mode, 0).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}

fn set(fs: &dyn FileSystem, ino: InodeNo, name: &str, value: &[u8]) -> Result<()> {
    fs.setxattr(&CALLER, ino, name.as_bytes(), value, XattrSetMode::Set)
}

fn value(number: u64, len: usize) -> Vec<u8> {
    bytes(&mut Seed::new(number), len)
}

/// A volume on which the kernel has given files large values, some of them the same, and blocks of attributes that files share.
fn theirs(scratch: &Scratch, shape: &[&str]) -> Option<(Vec<u8>, Tree)> {
    let (image, tree) = kernel::changed(scratch, &made(scratch, shape), |at| {
        for (name, attribute, letter, len) in [
            ("one", "user.large", "a", 9000),
            ("two", "user.large", "a", 9000),
            ("three", "user.other", "a", 9000),
            ("three", "user.large", "b", 20_000),
            ("four", "user.large", "a", 9000),
            ("four", "user.small", "c", 20),
            ("five", "user.small", "c", 20),
            ("five", "user.large", "d", 9000),
            ("five", "user.huge", "e", 40_000),
        ] {
            let path = at.join(name);
            if !path.exists() {
                std::fs::write(&path, name).unwrap();
            }
            attribute_by_kernel(&path, attribute, &letter.repeat(len));
        }
    })?;
    // The kernel counts a value more than once for a block that it shares; who refers to it is what e2fsck says.
    let path = scratch.path("counted.img");
    std::fs::write(&path, image).unwrap();
    let (code, said) = run("e2fsck", &["-fy", path.to_str().unwrap()]);
    assert!(code <= 1, "{said}");
    Some((std::fs::read(&path).unwrap(), tree))
}

fn attribute_by_kernel(path: &Path, name: &str, value: &str) {
    let (code, said) = run("setfattr", &["-n", name, "-v", value, path.to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn large_values_of_ours_are_what_the_kernel_reads_and_removes() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-values-ours");
    for (at, shape) in SHAPES.into_iter().enumerate() {
        let device = device(made(&scratch, shape));
        let fs = mounted(&device, MODES[at % 3]);
        let what = format!("{shape:?}");
        let mut files = Vec::new();
        for (number, len) in [(1, 900), (2, 4090), (3, 5000), (4, 40_000), (5, 65_536), (6, 1)] {
            let ino = create(&fs, &format!("file-{number}"));
            set(&fs, ino, "user.small", b"small").unwrap();
            set(&fs, ino, "user.large", &value(number, len))
                .unwrap_or_else(|error| panic!("{what} {len}: {error}"));
            assert_eq!(fs.getxattr(ino, b"user.large").unwrap(), value(number, len), "{what} {len}");
            files.push(ino);
        }
        let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
        set(&fs, dir, "trusted.large", &value(9, 30_000)).unwrap();
        let link = fs.symlink(&CALLER, fs.root(), b"link", b"target").unwrap().attr.ino;
        assert_eq!(set(&fs, link, "trusted.large", &value(9, 30_000)).unwrap_err().errno(), Errno::NOSPC);
        assert_eq!(fs.readlink(link).unwrap(), b"target");
        // Another value for one, a small one for another, none for a third; two of one file.
        set(&fs, files[2], "user.large", &value(7, 20_000)).unwrap();
        set(&fs, files[3], "user.large", b"little").unwrap();
        fs.removexattr(&CALLER, files[4], b"user.large").unwrap();
        set(&fs, files[5], "user.also", &value(8, 7000)).unwrap();
        set(&fs, files[5], "user.large", &value(8, 8000)).unwrap();
        fs.unlink(&CALLER, fs.root(), b"file-2").unwrap();
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        e2fsck_is_content(&scratch, &what, &device.image());
        Tree::of(&mounted(&device, MODES[at % 3])).expect(&expected, &what);
        let Some(found) = kernel::tree(&scratch, &device.image()) else { continue };
        found.expect(&expected, &format!("{what}: the kernel's"));
        let removed = kernel::changed(&scratch, &device.image(), |at| {
            attribute_by_kernel(&at.join("file-3"), "user.large", "x");
            std::fs::remove_file(at.join("file-6")).unwrap();
            std::fs::remove_dir(at.join("dir")).unwrap();
        });
        e2fsck_is_content(&scratch, &format!("{what}: after the kernel"), &removed.unwrap().0);
    }
}

#[test]
fn large_values_of_theirs_go_with_their_last_file() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-values-theirs");
    let changes: &[&[&str]] = &[
        &["rm one", "rm two", "rm three", "rm four", "rm five"],
        &["bare one user.large", "bare three user.other", "rm four", "bare two user.large"],
        &[
            "set one user.large 5",
            "set two user.large 9000",
            "set three user.large 3",
            "set four user.large 30000",
        ],
        &[
            "set one user.new 3",
            "set two user.new 300",
            "set three user.new 3",
            "set four user.new 2000",
            "set five user.new 9",
        ],
        &["held one", "held three", "held five", "rm four"],
        &[
            "bare five user.small",
            "bare five user.large",
            "set five user.huge 7",
            "bare five user.huge",
            "bare four user.small",
        ],
    ];
    for (number, shape) in SHAPES.into_iter().enumerate() {
        let Some((image, tree)) = theirs(&scratch, shape) else { return };
        for (step, list) in changes.iter().enumerate() {
            let device = device(image.clone());
            let what = format!("{shape:?} {list:?}");
            let fs = mounted(&device, MODES[(number + step) % 3]);
            Tree::of(&fs).expect(&tree, &what);
            for text in *list {
                apply(&fs, text).unwrap_or_else(|error| panic!("{what}: {text}: {error}"));
            }
            let expected = Tree::of(&fs);
            fs.unmount().unwrap();
            drop(fs);
            e2fsck_is_content(&scratch, &what, &device.image());
            kernel::tree(&scratch, &device.image()).unwrap().expect(&expected, &what);
        }
    }
}

/// A change in words.
fn apply(fs: &dyn FileSystem, text: &str) -> Result<()> {
    let words: Vec<&str> = text.split(' ').collect();
    let ino = fs.lookup(fs.root(), words[1].as_bytes())?.attr.ino;
    let done = match words[0] {
        "rm" => fs.unlink(&CALLER, fs.root(), words[1].as_bytes()),
        "bare" => fs.removexattr(&CALLER, ino, words[2].as_bytes()),
        "set" => {
            let len = words[3].parse().unwrap();
            set(fs, ino, words[2], &value(u64::try_from(len).unwrap(), len))
        }
        "held" => fs
            .unlink(&CALLER, fs.root(), words[1].as_bytes())
            .and_then(|()| set(fs, ino, "user.last", &[1; 9000])),
        word => panic!("{word}"),
    };
    fs.forget(ino, 1);
    done
}

#[test]
fn without_a_journal_they_are_only_read() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-values-soft");
    let image = made(&scratch, &["-O", "ea_inode,^has_journal"]);
    let with = made(&scratch, &["-O", "ea_inode"]);
    let opened = |image: &[u8], consistency, read_only| {
        let mut arrangement = Arrangement { consistency, ..Arrangement::default() };
        (arrangement.cache.read_only, arrangement.fs.read_only) = (read_only, read_only);
        open::<Ext2>(device(image.to_vec()), &arrangement, Arc::new(ManualClock::new())).map(drop)
    };
    for (image, mode) in [(&image, None), (&with, Some(Consistency::Soft)), (&with, Some(Consistency::Async))]
    {
        let refused = opened(image, mode, false).unwrap_err().to_string();
        assert!(refused.contains("ea_inode") && refused.contains("journal"), "{refused}");
        opened(image, mode, true).unwrap();
    }
    opened(&with, None, false).unwrap();
}

#[test]
fn without_room_nothing_has_changed_and_nothing_is_left() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-values-full");
    for mode in MODES {
        let device = device(made(&scratch, &["-O", "ea_inode", "-b", "1024", "-m", "0"]));
        let fs = mounted(&device, mode);
        let file = create(&fs, "file");
        set(&fs, file, "user.large", &value(1, 9000)).unwrap();
        let filler = create(&fs, "filler");
        let mut end = 0;
        while let Ok(wrote) = fs.write(&CALLER, filler, end, &[1; 60_000]) {
            end += u64::try_from(wrote).unwrap();
        }
        // A few blocks are left.
        fs.setattr(&CALLER, filler, &SetAttr { size: Some(end - 6 * 1024), ..Default::default() }).unwrap();
        fs.sync().unwrap();
        for (name, len) in [("user.large", 20_000), ("user.more", 9000), ("user.more", 7 * 1024)] {
            assert_eq!(
                set(&fs, file, name, &value(2, len)).unwrap_err().errno(),
                Errno::NOSPC,
                "{mode} {len}"
            );
        }
        assert_eq!(fs.getxattr(file, b"user.large").unwrap(), value(1, 9000));
        set(&fs, file, "user.more", &value(2, 3000)).unwrap();
        fs.unmount().unwrap();
        e2fsck_is_content(&scratch, &format!("{mode}"), &device.image());
    }
}

#[test]
fn random_values_are_what_was_set_last() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-values-random");
    for round in 0..8_u64 {
        let number = usize::try_from(round).unwrap();
        let device = device(made(&scratch, SHAPES[number % SHAPES.len()]));
        let fs = mounted(&device, MODES[number % 3]);
        let mut seed = Seed::new(round);
        let mut expected: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
        (0..4).for_each(|file| _ = create(&fs, &format!("file-{file}")));
        for step in 0..150 {
            let (file, attribute) = (seed.below(4), seed.below(5));
            let file_name = format!("file-{file}");
            let ino = fs.lookup(fs.root(), file_name.as_bytes()).unwrap().attr.ino;
            let name = format!("user.{attribute}");
            match seed.below(12) {
                0 => {
                    fs.unlink(&CALLER, fs.root(), file_name.as_bytes()).unwrap();
                    create(&fs, &file_name);
                    expected.retain(|&(of, _), _| of != file);
                }
                1 | 2 => {
                    let gone = fs.removexattr(&CALLER, ino, name.as_bytes());
                    assert_eq!(gone.is_ok(), expected.remove(&(file, attribute)).is_some(), "{round} {step}");
                }
                _ => {
                    let most = [30, 600, 3000, 60_000][usize::try_from(seed.below(4)).unwrap()];
                    let new = value(seed.below(1000), usize::try_from(1 + seed.below(most)).unwrap());
                    match set(&fs, ino, &name, &new) {
                        Ok(()) => drop(expected.insert((file, attribute), new)),
                        Err(error) => assert_eq!(error.errno(), Errno::NOSPC, "{round} {step}"),
                    }
                }
            }
            fs.forget(ino, 1);
        }
        let compare = |fs: &dyn FileSystem| {
            for file in 0..4 {
                let ino = fs.lookup(fs.root(), format!("file-{file}").as_bytes()).unwrap().attr.ino;
                for attribute in 0..5 {
                    let found = fs.getxattr(ino, format!("user.{attribute}").as_bytes()).ok();
                    assert_eq!(
                        found.as_ref(),
                        expected.get(&(file, attribute)),
                        "{round} {file} {attribute}"
                    );
                }
            }
        };
        compare(&fs);
        fs.unmount().unwrap();
        drop(fs);
        e2fsck_is_content(&scratch, &format!("{round}"), &device.image());
        compare(&mounted(&device, Consistency::Ordered));
    }
}

/// After a power cut at any write, a value is the old one or the new one, and nobody refers to one that is not there, or leaves one behind.
#[test]
fn values_are_whole_after_any_cut() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-values-cut");
    let Some((image, tree)) = theirs(&scratch, &["-O", "ea_inode", "-b", "1024"]) else { return };
    let below: &'static MemDevice = Box::leak(Box::new(MemDevice::from_image(1024, image.clone())));
    for mechanism in MODES {
        let mut cuts = 0..600;
        let ended = cuts.find(|&left| {
            for (block, data) in (0..).zip(image.chunks(1024)) {
                below.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
            }
            let lossy = Lossy::after(below, left, u64::try_from(left).unwrap());
            let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
            let fs = open::<Ext2>(Arc::new(lossy), &arrangement, Arc::new(ManualClock::new())).unwrap().0;
            let changes =
                ["set one user.large 12000", "set two user.new 400", "rm four", "bare three user.large"];
            let held = fs.lookup(fs.root(), b"five").map(|entry| entry.attr.ino);
            let done = changes
                .iter()
                .try_for_each(|text| apply(&fs, text))
                .and_then(|()| fs.unlink(&CALLER, fs.root(), b"five"))
                .and_then(|()| fs.sync());
            // Whoever holds it goes with the power.
            drop((held, fs));
            recovered(below);
            let after = below.image();
            let report = check_ext2(&*device(after.clone())).unwrap();
            assert_eq!(report.total, 0, "{mechanism} {left}: {:?}", report.findings);
            if left % 12 == 0 || done.is_ok() {
                e2fsck_is_content(&scratch, &format!("{mechanism} {left}"), &after);
            }
            let fs = mounted(&device(after), mechanism);
            let ino = fs.lookup(fs.root(), b"one").unwrap().attr.ino;
            let found = fs.getxattr(ino, b"user.large").unwrap();
            assert!(found == [b'a'; 9000] || found == value(12_000, 12_000), "{mechanism} {left}");
            let (now, two) = (Tree::of(&fs).0, &b"/two"[..]);
            assert_eq!(now[two].xattrs[&b"user.large"[..]], tree.0[two].xattrs[&b"user.large"[..]]);
            done.is_ok()
        });
        assert!(ended.is_some_and(|ended| ended > 20), "{mechanism}: {ended:?}");
    }
}

/// What `debugfs` makes of the image when it is told so.
fn told(scratch: &Scratch, image: &[u8], commands: &[String]) -> Vec<u8> {
    let path = scratch.path("told.img");
    std::fs::write(&path, image).unwrap();
    for command in commands {
        let (code, said) = run("debugfs", &["-w", "-R", command, path.to_str().unwrap()]);
        assert!(code == 0 && said.lines().count() <= 1, "{command}: {said}");
    }
    std::fs::read(&path).unwrap()
}

/// Where the entries named `name` say which inode has their value, in an image.
fn entries(image: &[u8], name: &str) -> Vec<usize> {
    let header = [u8::try_from(name.len()).unwrap(), 1, 0, 0];
    let mut all = Vec::new();
    for (at, bytes) in image.windows(16 + name.len()).enumerate() {
        if bytes[..4] == header && &bytes[16..] == name.as_bytes() && bytes[4..8] != [0; 4] {
            all.push(at + 4);
        }
    }
    all
}

fn number(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(image[at..at + 4].try_into().unwrap())
}

/// A volume where `file` has a value in the inode that is returned as well, `other` another one.
fn with_two(scratch: &Scratch, shape: &[&str]) -> (Vec<u8>, InodeNo, u32) {
    let device = device(made(scratch, shape));
    let fs = mounted(&device, Consistency::Full);
    let [file, other] = ["file", "other"].map(|name| create(&fs, name));
    set(&fs, file, "user.large", &value(1, 5000)).unwrap();
    set(&fs, other, "user.others", &value(2, 5000)).unwrap();
    fs.unmount().unwrap();
    let image = device.image();
    let at = *entries(&image, "large").last().unwrap();
    let value = number(&image, at);
    (image, file, value)
}

#[test]
fn a_new_value_stays_where_the_old_one_cannot_go() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("ext4-values-stay");
    for mode in MODES {
        let (image, file, old) = with_two(&scratch, &["-O", "ea_inode", "-b", "1024"]);
        let image = told(&scratch, &image, &[format!("sif <{old}> file_acl 7777")]);
        let device = device(image);
        let fs = mounted(&device, mode);
        let refused = set(&fs, file, "user.large", &value(3, 9000)).unwrap_err();
        assert!(refused.to_string().contains("has attributes"), "{mode}: {refused}");
        assert_eq!(fs.getxattr(file, b"user.large").unwrap(), value(3, 9000), "{mode}");
        // Nothing is changed any more: what is stable is before the change, or behind it.
        assert!(fs.sync().is_err() && fs.unlink(&CALLER, fs.root(), b"other").is_err());
        drop(fs);
        recovered_in(&*device, BATCH_MAX).unwrap();
        let fs = mounted(&device, mode);
        let found = fs.getxattr(file, b"user.large").unwrap();
        assert!(found == value(1, 5000) || found == value(3, 9000), "{mode}");
    }
}

fn recovered_in(device: &dyn BlockDevice, batch_max: usize) -> Result<Option<Recovered>> {
    let mut options =
        Options { external: None, now: NOW, for_reading: false, batch_max, progress: &mut |_| {} };
    recover(device, &mut options)
}

#[test]
fn an_orphan_that_names_no_value_is_damage() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("ext4-values-damage");
    for with_sums in [false, true] {
        let sums = if with_sums { "ea_inode,metadata_csum" } else { "ea_inode,^metadata_csum" };
        let (image, file, _) = with_two(&scratch, &["-O", sums, "-b", "1024", "-I", "128"]);
        let ino = file.get();
        let orphan = [
            "unlink file".to_owned(),
            format!("sif <{ino}> links_count 0"),
            format!("ssv last_orphan {ino}"),
        ];
        let image = told(&scratch, &image, &orphan);
        let sound = device(image.clone());
        let done = recovered_in(&*sound, BATCH_MAX).unwrap().unwrap();
        assert_eq!((done.orphans.freed, &done.errors[..]), (1, &[][..]));
        let others = number(&image, *entries(&image, "others").last().unwrap());
        let numbers = if with_sums {
            vec![others]
        } else {
            vec![8, u32::MAX, 1 << 20, u32::try_from(file.get()).unwrap()]
        };
        for wrong in numbers {
            let mut image = image.clone();
            for at in entries(&image, "large") {
                image[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
            }
            let device = device(image);
            let done = recovered_in(&*device, BATCH_MAX).unwrap().unwrap();
            assert!(done.orphans.dropped && done.errors.len() == 1, "{wrong}: {done:?}");
            let fs = mounted(&device, Consistency::Full);
            let other = fs.lookup(fs.root(), b"other").unwrap().attr.ino;
            assert_eq!(fs.getxattr(other, b"user.others").unwrap(), value(2, 5000), "{wrong}");
        }
    }
}

/// Orphans with values, in batches that end in the middle of one; also after a cut in any of them.
#[test]
fn orphans_lose_their_values_in_batches_of_any_size() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-values-batches");
    let device = device(made(&scratch, &["-O", "ea_inode", "-b", "1024", "-g", "1024", "-N", "4096"]));
    let fs = mounted(&device, Consistency::Full);
    for number in 0..24 {
        let name = format!("file-{number}");
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let ino = fs.mknod(&CALLER, fs.root(), name.as_bytes(), mode, 0).unwrap().attr.ino;
        for attribute in 0..1 + number % 3 {
            let len = usize::try_from(2000 + 1500 * number).unwrap();
            set(&fs, ino, &format!("user.{attribute}"), &value(number, len)).unwrap();
        }
        fs.write(&CALLER, ino, 0, &[1; 3000]).unwrap();
        fs.unlink(&CALLER, fs.root(), name.as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    let image = device.image();
    drop(fs);
    let below: &'static MemDevice = Box::leak(Box::new(MemDevice::from_image(1024, image.clone())));
    let put = || {
        for (block, data) in (0..).zip(image.chunks(1024)) {
            below.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
        }
    };
    for batch_max in 32..72 {
        put();
        let done = recovered_in(below, batch_max).unwrap().unwrap();
        assert_eq!((done.orphans.freed, &done.errors[..]), (24, &[][..]), "{batch_max}");
        e2fsck_is_content(&scratch, &format!("{batch_max}"), &below.image());
    }
    let mut cuts = (0..).step_by(if is_thorough() { 1 } else { 41 });
    let ended = cuts.find(|&left| {
        put();
        let batch_max = 32 + left % 40;
        let done = recovered_in(&Cut::after(below, left), batch_max);
        let again = recovered_in(below, batch_max).unwrap();
        assert!(again.is_none_or(|again| again.errors.is_empty()), "{left}");
        e2fsck_is_content(&scratch, &format!("cut {left}"), &below.image());
        done.is_ok()
    });
    assert!(ended.is_some_and(|ended| ended > 200), "{ended:?}");
}

/// An access list of many users.
fn long_list() -> Vec<u8> {
    let users = (0..700_u32).map(|id| (2, 1000 + id));
    let all = [(1, u32::MAX)].into_iter().chain(users);
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, id) in all.chain([(4, u32::MAX), (16, u32::MAX), (32, u32::MAX)]) {
        list.extend(u16::to_le_bytes(tag));
        list.extend(6_u16.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// Where each block of a value lies in another group, a change dirties no more than it had room for.
#[test]
fn scattered_values_have_room_in_their_steps() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-values-scattered");
    let device = device(made(&scratch, &["-O", "ea_inode", "-b", "1024", "-g", "512", "-m", "0"]));
    let fs = mounted(&device, Consistency::Ordered);
    let file = create(&fs, "file");
    set(&fs, file, "user.first", &value(1, 5000)).unwrap();
    let filler = create(&fs, "filler");
    let mut end = 0;
    while let Ok(wrote) = fs.write(&CALLER, filler, end, &[1; 8192]) {
        end += u64::try_from(wrote).unwrap();
    }
    for at in (0..end / 1024).step_by(450) {
        fs.fallocate(&CALLER, filler, at * 1024, 1024, FallocateMode::PunchHole).unwrap();
    }
    let measured = |what: &str, len: usize, change: &dyn Fn() -> Result<()>| {
        fs.sync().unwrap();
        let low = fs.format();
        let room = 4 + low.xattr_blocks(&low.load_any(file).unwrap(), len).unwrap();
        change().unwrap_or_else(|error| panic!("{what}: {error}"));
        let dirtied = low.cache().journal_status().unwrap().running_blocks;
        assert!(dirtied <= room, "{what}: {dirtied} {room}");
        dirtied
    };
    let made = measured("made", 60_000, &|| set(&fs, file, "user.large", &value(2, 60_000)));
    assert!(made > 60, "nothing was scattered: {made}");
    let ended = measured("ended", 0, &|| fs.removexattr(&CALLER, file, b"user.large"));
    assert!(ended > 60, "nothing was scattered: {ended}");
    let list = long_list();
    measured("list", list.len(), &|| set(&fs, file, "system.posix_acl_access", &list));
    let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    let changed = measured("mode", list.len(), &|| fs.setattr(&CALLER, file, &mode).map(drop));
    assert!(changed > 10, "the list lies in no value: {changed}");
    fs.unmount().unwrap();
    drop(fs);
    e2fsck_is_content(&scratch, "scattered", &device.image());
}
