//! Contents that others have put into inodes, changed by us: a file that loses bytes when it moves to a block, a name that is in its
//! directory twice or not at all, an attribute that is gone with the contents. What must come out is what a volume without the feature has
//! after the same changes.

use std::path::Path;
use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockWrite, Caller, Consistency, Errno, FallocateMode, FileKind,
    FileSystem, InodeNo, ManualClock, MemDevice, RenameMode, Result, Seed, SetAttr, XattrSetMode,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::{Ext2, file_map};

use super::cut::Lossy;
use super::kernel;
use super::support::{Scratch, have, run};
use super::tree::{Tree, bytes};
use super::{device, e2fsck_is_content, mounted, recovered};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
/// Lengths of files, up to more than any inode here has room for.
const LENGTHS: [usize; 10] = [0, 1, 30, 59, 60, 61, 100, 130, 300, 800];
/// What `mke2fs -t ext4` is told beside the feature.
const SHAPES: [&[&str]; 6] = [
    &["-b", "4096"],
    &["-b", "1024"],
    &["-b", "1024", "-I", "512"],
    &["-b", "4096", "-I", "1024", "-O", "^metadata_csum"],
    &["-b", "1024", "-O", "^extent,^64bit"],
    &["-b", "2048", "-I", "512", "-O", "^dir_index"],
];

/// Fills a directory of the machine with what comes to lie in inodes.
fn source(at: &Path) {
    let mut seed = Seed::new(11);
    for top in ["t", "u"] {
        let top = at.join(top);
        std::fs::create_dir_all(top.join("empty")).unwrap();
        for len in LENGTHS {
            std::fs::write(top.join(format!("f{len}")), bytes(&mut seed, len)).unwrap();
        }
        std::fs::hard_link(top.join("f60"), top.join("linked")).unwrap();
        std::os::unix::fs::symlink("f1", top.join("short")).unwrap();
        std::os::unix::fs::symlink("long/".repeat(20), top.join("long")).unwrap();
        for dir in ["few", "more"] {
            std::fs::create_dir_all(top.join(dir).join("sub")).unwrap();
            for name in ["a", "bb", "ccc"] {
                std::fs::write(top.join(dir).join(name), name).unwrap();
            }
        }
        std::fs::write(top.join("more/a longer name"), "x").unwrap();
        std::fs::create_dir_all(top.join("more/second")).unwrap();
    }
    // One time for all, as the volumes are not made in the same moment.
    let (code, said) =
        run("find", &[at.to_str().unwrap(), "-exec", "touch", "-h", "-d", "@1700000000", "{}", "+"]);
    assert_eq!(code, 0, "{said}");
}

/// A volume with that in its inodes, and one with the same in blocks: made by the kernel, or else by `mke2fs`, which puts less into
/// inodes.
pub fn twins(scratch: &Scratch, shape: &[&str]) -> [Vec<u8>; 2] {
    let from = scratch.path("source");
    if !from.exists() {
        source(&from);
    }
    let made = |feature: &str, more: &[&str]| {
        let image = scratch.path("twin.img");
        let image = image.to_str().unwrap();
        let _ = std::fs::remove_file(image);
        let all = [&["-q", "-F", "-t", "ext4"], shape, &["-O", feature, "-N", "512"], more, &[image, "12M"]];
        let (code, said) = run("mke2fs", &all.concat());
        assert_eq!(code, 0, "{said}");
        std::fs::read(image).unwrap()
    };
    ["inline_data", "^inline_data"].map(|feature| {
        // Only the tool puts files without contents into inodes.
        let by_kernel = (shape != SHAPES[0]).then(|| kernel::copied(scratch, &made(feature, &[]), &from));
        by_kernel.flatten().unwrap_or_else(|| made(feature, &["-d", from.to_str().unwrap()]))
    })
}

fn at(fs: &dyn FileSystem, path: &str) -> Result<InodeNo> {
    let ino = fs.walk(path.as_bytes())?.attr.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

fn parent<'p>(fs: &dyn FileSystem, path: &'p str) -> Result<(InodeNo, &'p [u8])> {
    let (dir, name) = path.rsplit_once('/').unwrap();
    Ok((at(fs, dir)?, name.as_bytes()))
}

/// One operation in words; the same as the laboratory's where that has it.
fn operation(fs: &dyn FileSystem, text: &str) -> Result<()> {
    let words: Vec<&str> = text.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let path = words.get(1).copied().unwrap_or_default();
    match words[0] {
        "write" => {
            let data = bytes(&mut Seed::new(number(2)), usize::try_from(number(3)).unwrap());
            fs.write(&CALLER, at(fs, path)?, number(2), &data).map(drop)
        }
        "truncate" => {
            let set = SetAttr { size: Some(number(2)), ..SetAttr::default() };
            fs.setattr(&CALLER, at(fs, path)?, &set).map(drop)
        }
        "chmod" => {
            let set = SetAttr { perm: Some(0o4711), uid: Some(70_000), ..SetAttr::default() };
            fs.setattr(&CALLER, at(fs, path)?, &set).map(drop)
        }
        "allocate" => fs.fallocate(&CALLER, at(fs, path)?, number(2), number(3), FallocateMode::Allocate),
        "zero" => fs.fallocate(&CALLER, at(fs, path)?, number(2), number(3), FallocateMode::ZeroRange),
        "punch" => fs.fallocate(&CALLER, at(fs, path)?, number(2), number(3), FallocateMode::PunchHole),
        "create" => {
            let (dir, name) = parent(fs, path)?;
            let made = fs.mknod(&CALLER, dir, name, FileKind::Regular.mode_bits() | 0o644, 0)?;
            fs.forget(made.attr.ino, 1);
            Ok(())
        }
        "mkdir" => {
            let (dir, name) = parent(fs, path)?;
            fs.forget(fs.mkdir(&CALLER, dir, name, 0o755)?.attr.ino, 1);
            Ok(())
        }
        "unlink" => parent(fs, path).and_then(|(dir, name)| fs.unlink(&CALLER, dir, name)),
        "rmdir" => parent(fs, path).and_then(|(dir, name)| fs.rmdir(&CALLER, dir, name)),
        "held" => {
            let (dir, name) = parent(fs, path)?;
            let ino = fs.lookup(dir, name)?.attr.ino;
            fs.unlink(&CALLER, dir, name)?;
            let wrote = fs.write(&CALLER, ino, 20, b"nobody sees it");
            fs.forget(ino, 1);
            wrote.map(drop)
        }
        "link" => {
            let (dir, name) = parent(fs, words[2])?;
            fs.forget(fs.link(&CALLER, at(fs, path)?, dir, name)?.attr.ino, 1);
            Ok(())
        }
        "rename" | "exchange" => {
            let mode = if words[0] == "rename" { RenameMode::Replace } else { RenameMode::Exchange };
            fs.rename(&CALLER, parent(fs, path)?, parent(fs, words[2])?, mode)
        }
        "attribute" => {
            let value = vec![7; usize::try_from(number(3)).unwrap()];
            fs.setxattr(&CALLER, at(fs, path)?, words[2].as_bytes(), &value, XattrSetMode::Set)
        }
        "bare" => fs.removexattr(&CALLER, at(fs, path)?, words[2].as_bytes()),
        "inherit" => {
            // A list: its version, then the three classes and a group.
            let mut list = vec![2, 0, 0, 0];
            for (tag, perm, id) in
                [(1, 7, u32::MAX), (4, 5, u32::MAX), (8, 5, 100), (16, 5, u32::MAX), (32, 0, u32::MAX)]
            {
                list.extend([tag, 0, perm, 0_u8]);
                list.extend(u32::to_le_bytes(id));
            }
            fs.setxattr(&CALLER, at(fs, path)?, b"system.posix_acl_default", &list, XattrSetMode::Set)
        }
        "sync" => fs.sync(),
        word => panic!("{word}"),
    }
}

/// What is done to a volume, each to a new one.
const CHANGES: &[&str] = &[
    "write /t/f100 10 5;write /t/f1 1 20;write /t/f59 59 1;write /t/f0 0 30;write /t/f0 10 3000",
    "write /t/f30 100 5;write /t/f60 5000 5;write /t/f61 0 20000;write /t/f130 1 1",
    "truncate /t/f100 0;truncate /t/f61 60;truncate /t/f60 10;truncate /t/f59 60;truncate /t/f30 100000",
    "truncate /t/f100 100;truncate /t/f100 50;truncate /t/f100 90;write /t/f100 200 5;truncate /t/f0 0;truncate /t/f0 7",
    "truncate /t/f100 0;write /t/f100 0 50;truncate /t/f1 0;sync;write /t/f1 3 5",
    "allocate /t/f100 0 100;allocate /t/f60 0 9000;allocate /t/f1 5000 100;zero /t/f61 3 20;zero /t/f59 0 9000;punch /t/f130 5 60;punch /t/f30 0 30",
    "unlink /t/f100;unlink /t/f0;unlink /t/linked;unlink /t/f60;unlink /t/short;unlink /t/long",
    "held /t/f100;held /t/f1;held /t/f0",
    "link /t/f100 /t/few/again;write /t/few/again 90 20;link /t/f1 /u/one;unlink /t/f1;write /u/one 0 1",
    "attribute /t/f100 user.a 5;attribute /t/f60 user.b 30;attribute /t/f1 user.large 400;bare /t/f60 user.b;attribute /t/f100 user.a 60",
    "attribute /t/f60 user.a 20;write /t/f60 60 1;attribute /t/f61 trusted.x 3;truncate /t/f61 0;chmod /t/f30;chmod /t/few;bare /t/f60 user.a",
    "attribute /t/more user.c 1;unlink /t/more/ccc;unlink /t/more/a;unlink /t/more/bb;rmdir /t/more/second;rmdir /t/more/sub",
    "attribute /t/few user.a 10;create /t/few/n;attribute /t/more user.b 300;unlink /t/more/a;attribute /t/more user.c 4",
    "create /t/few/new;create /t/more/new;create /t/empty/new;mkdir /t/empty/dir;unlink /t/few/a;unlink /t/more/ccc",
    "unlink /t/few/a;unlink /t/few/bb;unlink /t/few/ccc;rmdir /t/few/sub;rmdir /t/few;rmdir /t/empty",
    "unlink /t/more/ccc;create /t/more/ccc;unlink /t/few/bb;mkdir /t/few/bb;rmdir /t/few/bb;unlink /t/few/a;create /t/few/b",
    "rename /t/few/a /t/few/z;rename /t/more/a /t/few/q;rename /t/f60 /t/more/bb;rename /t/few/bb /t/few/ccc",
    "rename /t/f1 /t/more/bb;rename /t/f30 /t/few/bb;rename /t/few /u/few2;rename /t/more/sub /u/empty",
    "rename /t/few/sub /u/more/here;rename /t/more /u/few/there;create /u/few/there/n;create /u/more/here/n",
    "exchange /t/few/a /t/few/sub;exchange /t/few /u/f100;exchange /t/more/a /t/more/bb;exchange /u/more/sub /t/more/ccc;create /t/more/n",
    "inherit /t/few;mkdir /t/few/d;create /t/few/f;inherit /t/empty;create /t/empty/f",
    "create /t/more/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa;link /t/f100 /t/more/x;unlink /t/more/a",
];

#[test]
fn whatever_is_changed_is_as_if_it_had_been_in_blocks() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-inline");
    let mechanisms = [
        Consistency::Ordered,
        Consistency::Full,
        Consistency::Metadata,
        Consistency::Soft,
        Consistency::Async,
    ];
    for (number, shape) in SHAPES.into_iter().enumerate() {
        let images = twins(&scratch, shape);
        for (step, list) in CHANGES.iter().enumerate() {
            let mechanism = mechanisms[(number + step) % mechanisms.len()];
            let mechanism =
                if shape.contains(&"1024") && shape.contains(&"-I") && mechanism == Consistency::Soft {
                    Consistency::Sync
                } else {
                    mechanism
                };
            let what = format!("{shape:?} {mechanism}: {list}");
            let [ours, other] = images.clone().map(device);
            let trees = [&ours, &other].map(|device| {
                let fs = mounted(device, mechanism);
                for text in list.split(';') {
                    match operation(&fs, text) {
                        // Only a journal does that.
                        Err(error) if error.errno() == Errno::INVAL && text.starts_with("exchange") => {
                            assert!(!mechanism.is_journaled(), "{what}: {text}");
                        }
                        done => done.unwrap_or_else(|error| panic!("{what}: {text}: {error}")),
                    }
                }
                let tree = Tree::of(&fs);
                let report = fs.check().unwrap();
                assert_eq!(report.corrupt, 0, "{what}: {:?}", report.findings);
                fs.unmount().unwrap();
                tree
            });
            trees[0].expect(&trees[1], &what);
            e2fsck_is_content(&scratch, &what, &ours.image());
            Tree::of(&mounted(&ours, mechanism)).expect(&trees[1], &format!("{what}: again"));
            if let Some(found) = kernel::tree(&scratch, &ours.image()) {
                found.expect(&trees[1], &format!("{what}: the kernel's"));
            }
        }
    }
}

/// After a power cut at any write, with some of what was not flushed lost, everything is there that was before.
#[test]
fn what_was_stable_before_is_there_after_any_cut() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-inline-cut");
    let [image, _] = twins(&scratch, &["-b", "1024"]);
    let below: &'static MemDevice = Box::leak(Box::new(MemDevice::from_image(1024, image.clone())));
    let expected = Tree::of(&mounted(&device(image.clone()), Consistency::Ordered)).0;
    for mechanism in [Consistency::Metadata, Consistency::Ordered, Consistency::Full] {
        let mut cuts = 0..300;
        let ended = cuts.find(|&left| {
            for (block, data) in (0..).zip(image.chunks(1024)) {
                below.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
            }
            let lossy = Lossy::after(below, left, u64::try_from(left).unwrap());
            let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
            let clock = Arc::new(ManualClock::new());
            let fs = open::<Ext2>(Arc::new(lossy), &arrangement, clock).unwrap().0;
            let changes = ["write /t/f100 100 5", "write /t/f30 40 3", "create /t/few/n", "unlink /t/more/a"];
            let done = changes.iter().try_for_each(|text| operation(&fs, text)).and_then(|()| fs.unmount());
            drop(fs);
            recovered(below);
            let found = Tree::of(&mounted(&device(below.image()), mechanism)).0;
            for (path, item) in expected.iter().filter(|(path, _)| *path != b"/t/more/a") {
                let found = found.get(path).unwrap_or_else(|| panic!("{mechanism} {left}: {path:?} is lost"));
                let is_there = found.contents.starts_with(&item.contents);
                assert!(is_there, "{mechanism} {left}: {path:?} has lost contents");
            }
            done.is_ok()
        });
        assert!(ended.is_some_and(|ended| ended > 10), "{mechanism}: {ended:?}");
    }
}

/// How files and directories are mapped.
fn inside(image: &[u8], ino: InodeNo) -> bool {
    file_map::read(&*device(image.to_vec()), ino.get()).unwrap().is_inline
}

#[test]
fn only_what_changes_its_contents_moves() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-inline-stays");
    let [image, _] = twins(&scratch, &["-b", "1024"]);
    let device = device(image);
    let fs = mounted(&device, Consistency::Ordered);
    let stays = ["/t/f1", "/t/f60", "/t/f61", "/t/few", "/t/more", "/t/empty", "/t/f100", "/u/few"];
    let moves = ["/u/f1", "/u/f60", "/u/more", "/u/f59", "/u/f30"];
    let number = |path: &&str| at(&fs, path).unwrap();
    let (stays, moves) = (stays.each_ref().map(number), moves.each_ref().map(number));
    assert!(stays.iter().chain(&moves).all(|&ino| inside(&device.image(), ino)));
    for text in [
        "attribute /t/f1 user.a 4",
        "link /t/f60 /u/more/n",
        "chmod /t/f61",
        "rename /t/f61 /t/few/a",
        "unlink /t/more/ccc",
        "rename /t/empty /u/e",
        "truncate /t/f100 100",
        "exchange /u/few/a /u/few/bb",
        "write /u/f1 1 1",
        "truncate /u/f60 7",
        "write /u/f59 0 1",
        "truncate /u/f30 0",
    ] {
        operation(&fs, text).unwrap();
    }
    fs.unmount().unwrap();
    let image = device.image();
    assert!(stays.iter().all(|&ino| inside(&image, ino)) && moves.iter().all(|&ino| !inside(&image, ino)));
    let path = scratch.path("moved.img");
    std::fs::write(&path, &image).unwrap();
    for ino in moves {
        let (_, said) = run("debugfs", &["-R", &format!("stat <{}>", ino.get()), path.to_str().unwrap()]);
        assert!(said.contains("Inode:") && !said.contains("system.data"), "{said}");
    }
    // What is cut to nothing needs no block.
    let emptied = file_map::read(&*super::device(image), moves[4].get()).unwrap();
    assert!(emptied.runs.is_empty());
}

#[test]
fn a_reader_goes_on_where_he_was_when_his_directory_moves() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-inline-list");
    for shape in [&["-b", "1024", "-O", "^dir_index"][..], &["-b", "1024"]] {
        let [image, _] = twins(&scratch, shape);
        for mechanism in [Consistency::Ordered, Consistency::Soft] {
            for stop in 1..7 {
                let device = device(image.clone());
                let fs = mounted(&device, mechanism);
                let dir = at(&fs, "/t/more").unwrap();
                let (mut names, mut cookie) = (Vec::new(), 0);
                fs.readdir(dir, 0, &mut |entry| {
                    let takes = names.len() < stop;
                    if takes {
                        names.push(entry.name.to_vec());
                        cookie = entry.next;
                    }
                    takes
                })
                .unwrap();
                operation(&fs, "unlink /t/more/second/../bb").unwrap_or(());
                operation(&fs, "create /t/more/n").unwrap();
                fs.readdir(dir, cookie, &mut |entry| {
                    names.push(entry.name.to_vec());
                    true
                })
                .unwrap();
                names.retain(|name| name != b"n" && name != b"bb");
                names.sort();
                let expected: [&[u8]; 7] = [b".", b"..", b"a", b"a longer name", b"ccc", b"second", b"sub"];
                assert_eq!(names, expected, "{shape:?} {mechanism} {stop}");
            }
        }
    }
}

#[test]
fn without_a_block_nothing_has_changed() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-inline-full");
    let [image, _] = twins(&scratch, &["-b", "1024", "-m", "0"]);
    for mechanism in [Consistency::Ordered, Consistency::Metadata, Consistency::Full, Consistency::Soft] {
        let device = device(image.clone());
        let fs = mounted(&device, mechanism);
        operation(&fs, "create /u/filler").unwrap();
        let filler = at(&fs, "/u/filler").unwrap();
        let mut end = 0;
        let full = loop {
            match fs.write(&CALLER, filler, end, &[1; 60_000]) {
                Ok(wrote) => end += u64::try_from(wrote).unwrap(),
                Err(error) => break error.errno(),
            }
        };
        assert_eq!(full, Errno::NOSPC);
        // Through a new mount, so that nothing is kept for growing files.
        fs.unmount().unwrap();
        drop(fs);
        let fs = mounted(&device, mechanism);
        let before = Tree::of(&fs);
        let changes = [
            "write /t/f100 0 5",
            "write /t/f0 0 5",
            "truncate /t/f60 7",
            "truncate /t/f61 100",
            "create /t/few/n",
            "link /t/f1 /t/empty/n",
            "rename /t/f1 /t/more/n",
            "allocate /t/f30 0 10",
        ];
        for text in changes {
            let failed = operation(&fs, text).map_err(|error| error.errno());
            assert_eq!(failed, Err(Errno::NOSPC), "{mechanism}: {text}");
            Tree::of(&fs).expect(&before, text);
        }
        // What needs no block is done.
        for text in [
            "truncate /t/f59 0",
            "unlink /t/few/a",
            "rename /t/few/bb /t/few/ccc",
            "unlink /t/f130",
            "rename /t/f30 /t/more/a",
            "rmdir /t/empty",
        ] {
            operation(&fs, text).unwrap_or_else(|error| panic!("{mechanism}: {text}: {error}"));
        }
        fs.unmount().unwrap();
        e2fsck_is_content(&scratch, "full", &device.image());
    }
}

#[test]
fn random_changes_are_the_same_as_in_blocks() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-inline-random");
    let mechanisms = [Consistency::Ordered, Consistency::Soft, Consistency::Full, Consistency::Metadata];
    for run in 0..12_u64 {
        let number = usize::try_from(run).unwrap();
        let images = twins(&scratch, SHAPES[number % 3]);
        let mechanism = mechanisms[number % mechanisms.len()];
        let [ours, other] = images.map(device);
        let both = [&ours, &other].map(|device| mounted(device, mechanism));
        let mut seed = Seed::new(run);
        let mut done = Vec::new();
        for step in 0..160 {
            let text = draw(&mut seed);
            let results = both.each_ref().map(|fs| operation(fs, &text).map_err(|error| error.errno()));
            done.push(format!("{text} {:?}", results[0]));
            assert_eq!(results[0], results[1], "run {run}: {done:#?}");
            if step % 16 == 15 {
                let what = format!("run {run} {mechanism}: {done:#?}");
                Tree::of(&both[0]).expect(&Tree::of(&both[1]), &what);
            }
        }
        let expected = Tree::of(&both[1]);
        both[0].unmount().unwrap();
        drop(both);
        e2fsck_is_content(&scratch, &format!("run {run}"), &ours.image());
        Tree::of(&mounted(&ours, mechanism)).expect(&expected, &format!("run {run}, again"));
    }
}

/// A change of what is there, or was.
fn draw(seed: &mut Seed) -> String {
    let pick = |seed: &mut Seed, from: &[&str]| {
        from[usize::try_from(seed.below(u64::try_from(from.len()).unwrap())).unwrap()].to_owned()
    };
    let dir = |seed: &mut Seed| {
        pick(
            seed,
            &["/t", "/u", "/t/few", "/u/few", "/t/more", "/u/more", "/t/empty", "/u/empty", "/t/few/sub"],
        )
    };
    let name = |seed: &mut Seed| {
        pick(
            seed,
            &[
                "a",
                "bb",
                "ccc",
                "sub",
                "n",
                "a longer name",
                "f0",
                "f1",
                "f59",
                "f60",
                "f61",
                "f100",
                "linked",
                "few",
                "empty",
            ],
        )
    };
    let path = |seed: &mut Seed| format!("{}/{}", dir(seed), name(seed).replace(' ', "-"));
    let (one, two) = (path(seed), path(seed));
    let (offset, len) = (seed.below(200), 1 + seed.below(90));
    match seed.below(24) {
        0..=4 => format!("write {one} {offset} {len}"),
        5 | 6 => format!("truncate {one} {}", if seed.chance(1, 3) { 0 } else { offset }),
        7..=9 => format!("create {one}"),
        10 => format!("mkdir {one}"),
        11 | 12 => format!("unlink {one}"),
        13 => format!("rmdir {one}"),
        14..=16 => format!("rename {one} {two}"),
        17 => format!("link {one} {two}"),
        18 => format!("attribute {one} user.a {}", 1 + seed.below(120)),
        19 => format!("bare {one} user.a"),
        20 => format!("zero {one} {offset} {len}"),
        21 => format!("held {one}"),
        22 => format!("allocate {one} {offset} {len}"),
        _ => "sync /".to_owned(),
    }
}
