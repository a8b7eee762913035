//! What we mend satisfies the reference, and a second run finds nothing to do.

use fstitch_core::{MemDevice, Seed, Timestamp};
use fstitch_core::{RepairMode, RepairOptions, RepairReport};
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};

use crate::corpus::{SHAPES, image};
use crate::mutate::{SEED, damage};
use crate::support::{Scratch, e2fsck_image, have};

/// Repairs as far as `mode` goes.
pub fn repair(device: &MemDevice, mode: RepairMode) -> fstitch_core::Result<RepairReport> {
    let now = Timestamp { secs: 1_800_000_000, nanos: 0 };
    repair_ext2(device, RepairOptions { mode, now })
}

#[test]
fn mended_volumes_satisfy_the_reference() {
    if !have("e2fsck") {
        return;
    }
    let runs = std::env::var("FSTITCH_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(25_u64);
    let scratch = Scratch::new("mutate-mend");
    let (mut mended, mut refused, mut failures) = (0, 0, Vec::new());
    for shape in SHAPES {
        let healthy = image(&scratch, shape);
        for n in 0..runs {
            let mut seed = Seed::new(SEED + 7000 * n);
            let mut bytes = healthy.clone();
            let log = damage(&mut seed, &mut bytes);
            let device = MemDevice::from_image(1024, bytes);
            let Ok(report) = repair(&device, RepairMode::Yes) else {
                refused += 1;
                continue;
            };
            let (code, text) = e2fsck_image(&scratch, "mend", &device.image());
            if report.left.is_clean() && code == 0 {
                mended += 1;
            } else {
                let found: Vec<_> = report.found.findings.iter().take(3).collect();
                let left: Vec<_> = report.left.findings.iter().take(3).collect();
                let lines: Vec<_> = text.lines().filter(|line| line.contains('?')).take(3).collect();
                failures.push(format!(
                    "{} run {n}: {log:?}\nfound {found:?}\nleft {left:?} runs {}\n{}",
                    shape.name,
                    report.runs,
                    lines.join("\n")
                ));
            }
        }
    }
    println!("mended {mended}, refused {refused}, failed {}", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn looking_changes_nothing() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("mutate-look");
    let healthy = image(&scratch, &SHAPES[0]);
    for n in 0..200 {
        let mut seed = Seed::new(SEED + 31 * n);
        let mut bytes = healthy.clone();
        damage(&mut seed, &mut bytes);
        let device = MemDevice::from_image(1024, bytes.clone());
        if let (Ok(found), Ok(report)) = (check_ext2(&device), repair(&device, RepairMode::No)) {
            assert_eq!(found, report.found);
        }
        assert!(device.image() == bytes, "run {n} changed the volume");
    }
}
