//! Names that are exchanged where a journal is kept: wherever they are, as one transaction.
//!
//! What it prevents: `EINVAL` for what a journal can do, counts of names or `..` that are wrong afterwards, and an exchange of
//! which a crash leaves half.

use std::sync::Arc;

use fstitch_core::Consistency;
use fstitch_core::{
    Caller, Errno, FileKind, FileSystem, InodeNo, ManualClock, MemDevice, RenameMode, Result, Seed,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::mkfs::{MkfsJournal, MkfsOptions, mkfs};
use fstitch_fs::model::Model;
use fstitch_fs::uhfs::Uhfs;

use super::{NOW, recovered};

const JOURNALED: [Consistency; 3] = [Consistency::Ordered, Consistency::Metadata, Consistency::Full];
const REGULAR: u16 = 0o100_644;

fn volume() -> MemDevice {
    let device = MemDevice::new(1024, 8192);
    let mut options = MkfsOptions::new([1; 16], [2; 16], NOW);
    options.block_size = Some(1024);
    options.journal = MkfsJournal::Blocks(1024);
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    device
}

fn mounted(device: &Arc<MemDevice>, mechanism: Consistency) -> Uhfs<Ext2> {
    let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
    open::<Ext2>(Arc::clone(device) as _, &arrangement, Arc::new(ManualClock::new())).unwrap().0
}

/// The directory and the last name of a path.
fn parted<'a>(fs: &dyn FileSystem, path: &'a str) -> Result<(InodeNo, &'a [u8])> {
    let (dir, name) = path.rsplit_once('/').unwrap();
    Ok((fs.walk(dir.as_bytes())?.attr.ino, name.as_bytes()))
}

fn exchange(fs: &dyn FileSystem, one: &str, other: &str) -> Result<()> {
    fs.rename(&Caller::default(), parted(fs, one)?, parted(fs, other)?, RenameMode::Exchange)
}

fn make(fs: &dyn FileSystem, path: &str, is_dir: bool) {
    let (dir, name) = parted(fs, path).unwrap();
    let caller = Caller::default();
    let made =
        if is_dir { fs.mkdir(&caller, dir, name, 0o755) } else { fs.mknod(&caller, dir, name, REGULAR, 0) };
    if let Ok(entry) = &made
        && !is_dir
    {
        fs.write(&caller, entry.attr.ino, 0, path.as_bytes()).unwrap();
    }
    made.unwrap();
}

/// Every name with its kind, count of names and contents.
fn tree(fs: &dyn FileSystem) -> Vec<(String, u32, Vec<u8>)> {
    let (mut found, mut queue) = (Vec::new(), vec![String::new()]);
    while let Some(path) = queue.pop() {
        let attr = fs.walk(path.as_bytes()).unwrap().attr;
        let mut contents = vec![0; 64];
        match attr.kind {
            FileKind::Directory => {
                let mut names = Vec::new();
                fs.readdir(attr.ino, 0, &mut |entry| {
                    names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                    true
                })
                .unwrap();
                names.retain(|name| name != "." && name != ".." && name != "lost+found");
                queue.extend(names.into_iter().map(|name| format!("{path}/{name}")));
                contents.clear();
            }
            _ => {
                let done = fs.read(attr.ino, 0, &mut contents).unwrap();
                contents.truncate(done);
            }
        }
        // A new volume has a directory in its root that the model lacks.
        let nlink = if path.is_empty() { 0 } else { attr.nlink };
        found.push((path, nlink, contents));
    }
    found.sort();
    found
}

fn plant(fs: &dyn FileSystem) {
    for dir in ["/A", "/B", "/A/C", "/A/C/D", "/B/E"] {
        make(fs, dir, true);
    }
    for file in ["/f", "/A/g", "/B/h", "/A/C/i", "/B/E/j"] {
        make(fs, file, false);
    }
}

#[test]
fn names_are_exchanged_as_the_model_does_it() {
    let names = ["/f", "/A", "/B", "/A/g", "/A/C", "/A/C/D", "/A/C/i", "/B/h", "/B/E", "/B/E/j"];
    for mechanism in JOURNALED {
        let device = Arc::new(volume());
        let (fs, model) = (mounted(&device, mechanism), Model::new());
        plant(&fs);
        plant(&model);
        let mut seed = Seed::new(41);
        let (mut done, mut refused) = (0, 0);
        for round in 0..600 {
            let mut pick = || names[usize::try_from(seed.below(10)).unwrap()];
            let (one, other) = (pick(), pick());
            let (found, expected) = (exchange(&fs, one, other), exchange(&model, one, other));
            let errno = |result: &Result<()>| result.as_ref().err().map(fstitch_core::Error::errno);
            assert_eq!(errno(&found), errno(&expected), "{mechanism}, round {round}: {one} and {other}");
            *if found.is_ok() { &mut done } else { &mut refused } += 1;
            if round % 20 == 0 {
                assert_eq!(tree(&fs), tree(&model), "{mechanism}, round {round}");
                fs.sync().unwrap();
            }
        }
        assert!(done > 50 && refused > 50, "{done} done, {refused} refused");
        assert_eq!(tree(&fs), tree(&model));
        fs.unmount().unwrap();
        let report = check_ext2(&*device).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
        assert_eq!(tree(&mounted(&device, mechanism)), tree(&model), "after a remount");
    }
}

#[test]
fn an_exchange_is_on_the_medium_whole_or_not_at_all() {
    for mechanism in JOURNALED {
        for (one, other) in [("/f", "/A/g"), ("/A/C", "/B/E"), ("/A/C", "/f"), ("/A/C/i", "/B/E")] {
            let device = Arc::new(volume());
            let fs = mounted(&device, mechanism);
            plant(&fs);
            fs.sync().unwrap();
            let before = tree(&fs);
            exchange(&fs, one, other).unwrap();
            let after = tree(&fs);
            let image = |device: &MemDevice| Arc::new(MemDevice::from_image(1024, device.image()));
            for (device, expected, when) in [(image(&device), &before, "before a commit"), {
                fs.sync().unwrap();
                (image(&device), &after, "after one")
            }] {
                recovered(&*device, 1024).unwrap();
                let report = check_ext2(&*device).unwrap();
                assert!(report.is_clean(), "{mechanism}, {one}, {other}, {when}: {:?}", report.findings);
                assert_eq!(
                    tree(&mounted(&device, mechanism)),
                    *expected,
                    "{mechanism}, {one}, {other}, {when}"
                );
            }
        }
    }
}

#[test]
fn soft_updates_still_refuse_it() {
    let device = Arc::new(volume());
    let fs = mounted(&device, Consistency::Soft);
    plant(&fs);
    assert_eq!(exchange(&fs, "/f", "/A/g").unwrap_err().errno(), Errno::INVAL);
}
