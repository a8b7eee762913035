//! Quotas and power failures: usage that a crash, or a recovery that was cut, leaves other than the inodes.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockWrite, Consistency, FileSystem, ManualClock, MemDevice, SetAttr,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{Options, recover};
use fstitch_fs::ext2::layout::quota::QuotaKind;
use fstitch_fs::ext2::{Ext2, file_map};

use super::cut::{Cut, Lossy, is_thorough};
use super::quota::{account, caller, counted, file, listed};
use super::quota_damage::place;
use super::support::{Scratch, have, run};
use super::{NOW, device, e2fsck_is_content, kernel, made, mounted, recovered};

/// A small volume.
fn small(scratch: &Scratch, features: &str) -> Vec<u8> {
    let image = scratch.path("small.img");
    let image = image.to_str().unwrap();
    let _ = std::fs::remove_file(image);
    let all =
        ["-q", "-F", "-t", "ext4", "-O", features, "-b", "1024", "-N", "128", "-J", "size=1", image, "5M"];
    let (code, said) = run("mke2fs", &all);
    assert_eq!(code, 0, "{said}");
    std::fs::read(image).unwrap()
}

/// What e2fsck says of usage when it has recovered the volume.
fn e2fsck_finds_usage_right(scratch: &Scratch, name: &str, image: &[u8]) {
    let path = scratch.path("cut.img");
    std::fs::write(&path, image).unwrap();
    let (code, said) = run("e2fsck", &["-fy", path.to_str().unwrap()]);
    assert!(code <= 1 && !said.contains("QUOTA WARNING"), "{name}: {said}");
}

fn usage_is_right(scratch: &Scratch, name: &str, image: Vec<u8>) {
    let below = &device(image);
    let report = check_ext2(&**below).unwrap();
    assert_eq!(report.corrupt, 0, "{name}: {:#?}", report.findings);
    let fs = mounted(below, Consistency::Ordered);
    let expected = counted(&fs);
    drop(fs);
    let mut found = listed(scratch, &below.image(), "user");
    found.retain(|_, usage| *usage != (0, 0));
    assert_eq!(found, expected, "{name}");
}

/// Changes of owners, storage and numbers.
fn work(fs: &dyn FileSystem) -> fstitch_core::Result<()> {
    let root = caller(0, 0);
    let a = file(fs, &caller(1000, 100), "a", 40_000)?;
    fs.sync()?;
    let b = file(fs, &caller(1001, 101), "b", 9000)?;
    let set = SetAttr { uid: Some(70_000), gid: Some(5), ..SetAttr::default() };
    fs.setattr(&root, a, &set)?;
    fs.mkdir(&caller(1000, 100), fs.root(), b"dir", 0o755)?;
    fs.sync()?;
    let cut = SetAttr { size: Some(3000), ..SetAttr::default() };
    fs.setattr(&root, a, &cut)?;
    fs.symlink(&caller(1002, 100), fs.root(), b"link", &[b'x'; 200])?;
    fs.unlink(&root, fs.root(), b"b")?;
    fs.forget(b, 1);
    file(fs, &caller(0x7000_0000, 0x7000_0000), "c", 20_000)?;
    fs.unmount()
}

#[test]
fn a_mount_may_be_cut_at_every_write() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-cut");
    let image = small(&scratch, "quota,project");
    let below: &'static MemDevice = Box::leak(Box::new(MemDevice::from_image(1024, image.clone())));
    let mut cuts = 0;
    for mechanism in [Consistency::Metadata, Consistency::Ordered, Consistency::Full] {
        let mut lefts = (0..2000).step_by(if is_thorough() { 1 } else { 3 });
        let ended = lefts.find(|&left| {
            for (block, data) in (0..).zip(image.chunks(1024)) {
                below.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
            }
            let lossy = Lossy::after(below, left, u64::try_from(left).unwrap());
            let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
            let opened = open::<Ext2>(Arc::new(lossy), &arrangement, Arc::new(ManualClock::new()));
            let done = opened.and_then(|(fs, _)| work(&fs));
            let name = format!("{mechanism}, {left} writes");
            if left % 5 == 0 {
                e2fsck_finds_usage_right(&scratch, &name, &below.image());
            }
            recovered(below);
            usage_is_right(&scratch, &name, below.image());
            cuts += 1;
            done.is_ok()
        });
        assert!(ended.is_some(), "{mechanism}");
    }
    println!("{cuts} cuts");
    assert!(cuts > 60, "{cuts}");
}

/// A volume that was left with orphans of several users, and a file that was being cut.
fn with_orphans(scratch: &Scratch, features: &str) -> Vec<u8> {
    let device = device(small(scratch, features));
    let fs = mounted(&device, Consistency::Ordered);
    let root = caller(0, 0);
    for no in 0..12_u32 {
        let name = format!("f{no}");
        file(&fs, &caller(1000 + no % 5 * 70_000, no), &name, 30_000 + 17 * 1024 * (no as usize % 3))
            .unwrap();
    }
    fs.sync().unwrap();
    for no in (0..12).filter(|no| no % 4 != 1) {
        fs.unlink(&root, fs.root(), format!("f{no}").as_bytes()).unwrap();
    }
    fs.sync().unwrap();
    let left = device.image();
    drop(fs);
    left
}

#[test]
fn orphans_are_given_back_in_batches_of_any_size() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-orphans");
    let mut cuts = 0;
    for features in ["quota,project", "quota,^extent,^64bit,^metadata_csum"] {
        let left = with_orphans(&scratch, features);
        e2fsck_finds_usage_right(&scratch, features, &left);
        for batch_max in [32, 45, 1024] {
            for writes in (0..).step_by(if is_thorough() { 1 } else { 9 }) {
                let below = device(left.clone());
                let cut = Cut::after(&below, writes);
                let progress = &mut |_| {};
                let mut options =
                    Options { external: None, now: NOW, for_reading: false, batch_max, progress };
                let is_whole = recover(&cut, &mut options).is_ok();
                let name = format!("{features}, batches of {batch_max}, {writes} writes");
                if writes % 27 == 0 {
                    e2fsck_finds_usage_right(&scratch, &name, &below.image());
                }
                recovered(&*below);
                usage_is_right(&scratch, &name, below.image());
                cuts += 1;
                if is_whole {
                    e2fsck_is_content(&scratch, &name, &device(below.image()).image());
                    break;
                }
            }
        }
    }
    println!("{cuts} cuts");
    assert!(cuts > 30, "{cuts}");
}

/// The kernel here does not count, so it makes fast commits on a volume that hides that it has quotas.
#[test]
fn fast_commits_are_charged_for() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-fast");
    let mut applied = 0;
    for sums in ["^metadata_csum", "^metadata_csum,uninit_bg"] {
        let mut image = made(&scratch, &["-b", "4096", "-O", &format!("quota,fast_commit,{sums}")]);
        // The superuser has so much that nothing is too much to be taken from it.
        let entry = place(&image, 5) + 16;
        put(&mut image, entry + 28, 1);
        put(&mut image, entry + 52, 1 << 10);
        let features = number(&image, 1024 + 0x64);
        put(&mut image, 1024 + 0x64, features & !QUOTA);
        let Some(moments) = kernel::written_fast(&scratch, &image) else { return };
        for (step, mut left) in moments.into_iter().enumerate() {
            // Copies in the log as well, which have no sums.
            for at in (0..left.len()).step_by(4096) {
                if left[at + 1024 + 0x38..at + 1024 + 0x3a] == [0x53, 0xef] {
                    let features = number(&left, at + 1024 + 0x64);
                    put(&mut left, at + 1024 + 0x64, features | QUOTA);
                }
            }
            let whole = device(left.clone());
            let done = recovered(&*whole).unwrap();
            if done.fast_commits == 0 {
                continue;
            }
            applied += done.fast_commits;
            let before = device(without_fast_commits(left));
            assert_eq!(recovered(&*before).unwrap().fast_commits, 0);
            // Nobody has counted before: what the fast commits change is the difference of both.
            let difference = |of: &dyn Fn(&Arc<MemDevice>) -> (u64, u64)| {
                let (old, new) = (of(&before), of(&whole));
                (new.0.wrapping_sub(old.0).cast_signed(), new.1.wrapping_sub(old.1).cast_signed())
            };
            let said = difference(&|device| {
                let usage = account(&**device, QuotaKind::User, 0).unwrap().usage;
                (usage.space, usage.inodes)
            });
            let has = difference(&|device| {
                let fs = mounted(device, Consistency::Ordered);
                counted(&fs)[&0]
            });
            assert_eq!(said, has, "{sums}, step {step}");
        }
    }
    assert!(applied > 50, "{applied}");
}

/// `quota` among the features that only allow reading.
const QUOTA: u32 = 0x100;

fn number(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(image[at..at + 4].try_into().unwrap())
}

fn put(image: &mut [u8], at: usize, value: u32) {
    image[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The same as if the power had failed before the first fast commit: their blocks, the journal's last, are empty.
fn without_fast_commits(mut image: Vec<u8>) -> Vec<u8> {
    let map = file_map::read(&*device(image.clone()), 8).unwrap();
    let blocks: Vec<u64> = map.runs.iter().flat_map(|run| run.physical..run.physical + run.blocks).collect();
    for block in &blocks[blocks.len() - 256..] {
        let at = usize::try_from(block * 4096).unwrap();
        image[at..at + 4096].fill(0);
    }
    image
}
