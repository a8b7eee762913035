//! The peculiar volumes are what they say, and the judge of each state looks at it.
//!
//! What it prevents: families of workloads that find nothing because there is room after all, or because nobody counts.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Errno, Le};
use fstitch_crashlab::medium::Base;
use fstitch_crashlab::{Image, Lab, LabOptions};
use fstitch_fs::ext2::quota::report;
use fstitch_systems::system;
use fstitch_systems::workloads::find;

fn fresh(name: &str) -> Image {
    Image::new(system(name).unwrap().format().unwrap())
}

#[test]
fn hardly_anything_is_free() {
    for (name, room) in [
        ("ext4-ordered-k1600-n32-p64", 3),
        ("ext4-ordered-p64", 3),
        ("ext4-soft-k512-n32-p64", 3),
        ("ext2-soft-k512-n32-p64", 3),
        ("ext3-full-k1600-n32-p64", 3),
        ("ext4-full-k1800-n32-p96", 4),
        ("ext4-metadata-k1600-n48-p192", 3),
    ] {
        let (system, image) = (system(name).unwrap(), Arc::new(fresh(name)));
        let report = system.check(&(Arc::clone(&image) as Arc<dyn BlockDevice>)).unwrap();
        assert!(report.is_clean(), "{name}: {:?}", report.findings);
        let free = system.mount(image).unwrap().fs().statfs().unwrap();
        assert_eq!((free.blocks_available, free.inodes_free), (free.blocks_free, 3), "{name}");
        // Blocks of pointers come and go with others.
        let most = if name.starts_with("ext4") { room } else { room + 3 };
        assert!((room..=most).contains(&free.blocks_free), "{name}: {}", free.blocks_free);
    }
}

#[test]
fn usage_is_counted_and_limited() {
    let reports = report(&fresh("ext4-ordered-p128")).unwrap();
    assert_eq!(reports.len(), 3);
    for (kind, id, inodes, limits) in
        [(0, 1, 5, 0), (0, 3, 2, 18), (1, 12, 4, 0), (1, 14, 0, 10), (2, 5, 2, 18)]
    {
        let account = reports[kind].accounts.iter().find(|account| account.id == id).unwrap();
        let all = account.limits;
        let sum = all.space_soft + all.space_hard + all.inodes_soft + all.inodes_hard;
        assert_eq!((account.usage.inodes, sum), (inodes, limits), "kind {kind}, {id}");
    }
}

/// The judge's checker compares usage: an inode that somebody else has is found.
#[test]
fn usage_that_is_wrong_is_found() {
    let system = system("ext4-ordered-nosum-p128").unwrap();
    let image = fresh("ext4-ordered-nosum-p128");
    let mut bytes = image.bytes();
    let table = usize::try_from(Le::u32(&bytes, 2048 + 8)).unwrap() * 1024;
    let inodes = (table..table + 64 * 256).step_by(256);
    // The owner's low half is behind the mode.
    let inode = inodes.into_iter().find(|&at| Le::u16(&bytes, at + 2) == 3).unwrap();
    Le::put_u16(&mut bytes, inode + 2, 2);
    let image: Arc<dyn BlockDevice> = Arc::new(Image::new(Base::new(1024, bytes)));
    let report = system.check(&image).unwrap();
    let codes: Vec<_> = report.findings.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["quota-usage", "quota-usage", "clean-with-findings"], "user 2 has more, user 3 less");
    assert_eq!(system.repair(&image).unwrap().total, 0);
}

/// Blocks are used again, operations find no room or reach a limit, and most do something.
#[test]
fn workloads_on_them_do_what_they_are_for() {
    for (name, family, refusal, steps) in [
        ("ext4-ordered-k1600-n32-p64", "crowded", Errno::NOSPC, 0..640),
        ("ext4-ordered-k1600-n32-p64", "crowded-random", Errno::NOSPC, 0..160),
        ("ext4-ordered-k1800-n32-p96", "crowded", Errno::NOSPC, 0..640),
        ("ext4-ordered-p128", "quotas", Errno::DQUOT, 0..480),
        ("ext4-ordered-p128", "quotas-random", Errno::DQUOT, 0..160),
    ] {
        let lab = Lab::new(system(name).unwrap(), LabOptions::default()).unwrap();
        let (workloads, _) = find(family).unwrap();
        let (mut all, mut refused, mut so) = (0, 0, 0);
        for index in steps.step_by(8) {
            let workload = workloads.get(index).unwrap();
            let recording = lab.record(&workload).unwrap();
            all += workload.ops.len();
            refused += recording.refused.len();
            so += recording.refused.values().filter(|text| **text == refusal.to_string()).count();
        }
        println!("{name}, {family}: {refused} of {all} refused, {so} with {refusal}");
        assert!(so > 0 && refused * 5 < all * 3, "{name}, {family}: {refused} of {all}, {so}");
    }
}
