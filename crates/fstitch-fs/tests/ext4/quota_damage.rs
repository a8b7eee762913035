//! Quotas that say what is not so: not found, not mended, or mended at the cost of limits.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, Consistency, FileSystem, ManualClock, MemDevice, RepairMode, RepairOptions, Seed,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_fs::ext2::layout::quota::QuotaKind;
use fstitch_fs::ext2::quota::{Limits, report, set_limits};
use fstitch_fs::ext2::{Ext2, file_map};

use super::quota::{account, caller, file, steps};
use super::support::{Scratch, e2fsck_image, have};
use super::{NOW, device, e2fsck_is_content, made, mounted};

const LIMITS: Limits = Limits { space_soft: 1000, space_hard: 2000, inodes_soft: 0, inodes_hard: 77 };

/// A volume whose user 1000 has limits, and some usage.
fn counted(scratch: &Scratch, options: &[&str]) -> Vec<u8> {
    let device = device(made(scratch, options));
    let fs = mounted(&device, Consistency::Ordered);
    for no in 0..30_u32 {
        file(&fs, &caller(1000 + no / 2 * 70_000, no), &format!("f{no}"), 3000).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    set_limits(&*device, (QuotaKind::User, 1000), LIMITS, NOW).unwrap();
    device.image()
}

/// Where block `no` of 1 KiB of the users' file is in the image.
pub fn place(image: &[u8], no: usize) -> usize {
    let map = file_map::read(&*device(image.to_vec()), 3).unwrap();
    let unit = usize::try_from(map.block_size).unwrap();
    let index = (no * 1024 / unit) as u64;
    let run = map.runs.iter().find(|run| (run.logical..run.logical + run.blocks).contains(&index)).unwrap();
    usize::try_from(run.physical + index - run.logical).unwrap() * unit + no * 1024 % unit
}

/// Repairs; what is left is nothing, for us and for e2fsck.
fn repaired(scratch: &Scratch, name: &str, image: Vec<u8>, code: &str) -> Arc<MemDevice> {
    let device = device(image);
    let found = check_ext2(&*device).unwrap();
    let is_found = found.findings.iter().any(|finding| code.split(' ').any(|code| finding.code == code));
    assert!(is_found, "{name}: {:#?}", found.findings);
    let options = RepairOptions { mode: RepairMode::Yes, now: NOW };
    let report = repair_ext2(&*device, options).unwrap();
    assert!(report.left.is_clean(), "{name}: {:#?}", report.left.findings);
    e2fsck_is_content(scratch, name, &device.image());
    device
}

#[test]
fn wrong_usage_is_found_and_put_right() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-usage");
    for options in [&["-O", "quota", "-b", "1024"], &["-O", "quota", "-b", "4096"]] {
        let whole = counted(&scratch, options);
        let before = report(&*device(whole.clone())).unwrap();
        // The first entry's inodes and bytes, those of one with limits, and all of the first.
        for (at, len) in [(24, 1), (48, 2), (72 + 24, 2), (0, 72)] {
            let mut image = whole.clone();
            let entry = place(&image, 5) + 16 + at;
            image[entry..entry + len].fill(if len == 72 { 0 } else { 0x5a });
            let name = format!("{options:?} {at}");
            assert_ne!(e2fsck_image(&scratch, "wrong.img", &image).0, 0, "{name}");
            let code = if len == 72 { "quota-file" } else { "quota-usage" };
            let device = repaired(&scratch, &name, image, code);
            assert!(report(&*device).unwrap() == before, "{name}");
        }
    }
}

#[test]
fn a_damaged_file_is_made_anew_with_the_limits_that_can_be_read() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-tree");
    for options in [&["-O", "quota", "-b", "1024"], &["-O", "quota,^extent,^64bit", "-b", "2048"]] {
        let whole = counted(&scratch, options);
        // Magic number, version, blocks, list of leaves; the root; a node; a leaf's count of entries.
        for (no, at, value) in [
            (0, 0, 0_u32),
            (0, 4, 9),
            (0, 20, 1 << 30),
            (0, 28, 2),
            (1, 0, 99_999),
            (2, 0, 1),
            (4, 0, 4),
            (5, 8, 40),
        ] {
            let mut image = whole.clone();
            let byte = place(&image, no) + at;
            image[byte..byte + 4].copy_from_slice(&value.to_le_bytes());
            let name = format!("{options:?} block {no}, byte {at}");
            let device = repaired(&scratch, &name, image.clone(), "quota-file");
            let found = account(&*device, QuotaKind::User, 1000).unwrap();
            // A leaf that miscounts is not believed.
            if no != 5 {
                assert_eq!(found.limits, LIMITS, "{name}");
            }
            // Nobody writes a volume like that.
            let opened =
                open::<Ext2>(super::device(image), &Arrangement::default(), Arc::new(ManualClock::new()));
            if let Ok((fs, _)) = opened {
                let _done = file(&fs, &caller(1 << 25, 5), "new", 100);
                let _left = fs.unmount();
            }
        }
    }
}

#[test]
fn an_inode_that_lost_its_quotas_gets_others() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("quota-inode");
    for options in [
        &["-O", "quota,^metadata_csum", "-b", "1024"],
        &["-O", "quota,^metadata_csum,^extent,^64bit", "-b", "1024"],
    ] {
        let whole = counted(&scratch, options);
        let table = {
            let at = 2 * 1024 + 8;
            u32::from_le_bytes(whole[at..at + 4].try_into().unwrap()) as usize * 1024
        };
        let inode = table + 2 * 256;
        // All of it; its mode; its map.
        for (at, len) in [(0, 256), (0, 2), (0x28, 60)] {
            let mut image = whole.clone();
            image[inode + at..inode + at + len].fill(0);
            let device =
                repaired(&scratch, &format!("{options:?} {at} {len}"), image, "quota-file inode-reserved");
            assert_eq!(account(&*device, QuotaKind::User, 1000).unwrap().usage.inodes, 2);
        }
        let mut image = whole.clone();
        image[1024 + 0x240] = 9;
        repaired(&scratch, "another number", image, "superblock-quota");
    }
}

#[test]
fn no_byte_of_a_quota_file_makes_a_mount_or_a_check_panic() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("quota-bytes");
    let whole = counted(&scratch, &["-O", "quota", "-b", "1024"]);
    let mut seed = Seed::new(5);
    for round in 0..60 {
        let mut image = whole.clone();
        for _ in 0..=seed.below(3) {
            let no = usize::try_from(seed.below(7)).unwrap();
            let most = if seed.chance(1, 2) { 40 } else { 1024 };
            let at = place(&whole, no) + usize::try_from(seed.below(most)).unwrap();
            image[at] ^= 1 << seed.below(8);
        }
        let device = device(image);
        let found = check_ext2(&*device).unwrap();
        let opened =
            open::<Ext2>(Arc::clone(&device) as _, &Arrangement::default(), Arc::new(ManualClock::new()));
        if let Ok((fs, _)) = opened
            && found.is_clean()
        {
            steps(&fs, &mut seed, 30);
        }
        let options = RepairOptions { mode: RepairMode::Yes, now: NOW };
        if let Ok(report) = repair_ext2(&*device, options) {
            assert!(
                report.left.is_clean() || !found.is_clean(),
                "round {round}: {:#?}",
                report.left.findings
            );
        }
        let _read = report(&*device as &dyn BlockDevice);
    }
}
