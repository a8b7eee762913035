//! Random damage: never a panic, never clean where the reference objects, mended for both, and in all no more files lost than
//! by the reference.
//!
//! `FSTITCH_MUTATIONS=1000` is the number of images for each shape.

use fstitch_core::{CheckReport, MemDevice, RepairMode, Seed};
use fstitch_fs::ext2::check::check_ext2;

use super::corpus::{filled, shape};
use super::image::mended;
use crate::mutate::{SEED, damage};
use crate::repair::repair;
use crate::support::{Scratch, e2fsck_image};

/// Shapes whose damage differs most.
const MUTATED: &[&str] =
    &["4k", "1k", "inline-512", "ea-inode", "no-sums", "uninit", "meta-bg", "orphan-file"];

fn runs(default: u64) -> u64 {
    std::env::var("FSTITCH_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn random_damage_is_found_and_mended() {
    let scratch = Scratch::new("ext4-mutate");
    let (mut fewer, mut same, mut more) = (0, 0, 0);
    for name in MUTATED {
        let Some(healthy) = filled(&scratch, shape(name)) else { return };
        for n in 0..runs(8) {
            let name = format!("{name} run {n}");
            let mut seed = Seed::new(SEED + 77 * n);
            let mut bytes = healthy.clone();
            let log = damage(&mut seed, &mut bytes);
            let report = check_ext2(&MemDevice::from_image(1024, bytes.clone()));
            if report.as_ref().is_ok_and(CheckReport::is_clean) {
                let (code, text) = e2fsck_image(&scratch, "judge", &bytes);
                assert_eq!(code, 0, "{name}: clean here, after {log:?}: {text}");
                continue;
            }
            if report.is_err() {
                // A feature that we do not know, by a bit of the superblock.
                continue;
            }
            let mended = mended(&scratch, &name, bytes);
            assert_eq!(mended.verdict.0, 0, "{name}, after {log:?}: {}", mended.verdict.1);
            match mended.reference.map(|files| files.cmp(&mended.files)) {
                Some(std::cmp::Ordering::Greater) => {
                    println!(
                        "{name}: {} files, the reference keeps {:?}: {log:?}",
                        mended.files, mended.reference
                    );
                    fewer += 1;
                }
                Some(std::cmp::Ordering::Less) => more += 1,
                Some(std::cmp::Ordering::Equal) => same += 1,
                None => {}
            }
        }
    }
    println!("against the reference: as many files kept {same}, more {more}, fewer {fewer}");
    assert!(fewer <= more, "more files are lost than by the reference");
}

#[test]
fn damaged_volumes_never_panic_or_hang() {
    let scratch = Scratch::new("ext4-safe");
    for name in MUTATED {
        let Some(healthy) = filled(&scratch, shape(name)) else { return };
        for n in 0..runs(60) {
            let mut seed = Seed::new(SEED + 991 * n);
            let mut bytes = healthy.clone();
            damage(&mut seed, &mut bytes);
            let device = MemDevice::from_image(1024, bytes);
            if let Ok(report) = repair(&device, RepairMode::Yes) {
                assert!(report.left.is_clean(), "{name} run {n}: {:#?}", report.left.findings);
            }
        }
    }
}
