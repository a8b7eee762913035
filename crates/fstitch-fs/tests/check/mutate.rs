//! Random damage: never a panic or a hang, and never a clean bill of health where the reference objects.

use fstitch_core::num::to_usize;
use fstitch_core::{CheckReport, MemDevice, Seed};
use fstitch_fs::ext2::check::check_ext2;

use crate::corpus::{SHAPES, image};
use crate::support::{Scratch, e2fsck_image, have};

/// The seed of all random damage here.
pub const SEED: u64 = 0x5eed_0002;

/// Damages 1 to 4 places of an image; blocks of zeros and blocks of file contents are left alone, because
/// damage there tells nothing.
pub fn damage(seed: &mut Seed, image: &mut [u8]) -> Vec<String> {
    let mut log = Vec::new();
    let count = 1 + seed.below(4);
    while log.len() < usize::try_from(count).expect("small") {
        let at = to_usize(seed.below(image.len() as u64));
        let block = &image[at / 1024 * 1024..at / 1024 * 1024 + 1024];
        let dull = block.iter().all(|&b| b == 0)
            || block.iter().all(|&b| b == 0xff)
            || block[8..16] == *b"AAAAAAAA"
            || block[8..16] == *b"BBBBBBBB";
        if dull {
            continue;
        }
        let before = image[at];
        match seed.below(5) {
            0 => image[at] ^= 1 << seed.below(8),
            1 => image[at] = u8::try_from(seed.below(256)).expect("a byte"),
            2 => image[at] = 0,
            3 => {
                let at = at & !3;
                let value = u32::try_from(seed.below(4000)).expect("small");
                image[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            _ => {
                let len = 1 << seed.below(9);
                let end = (at + len).min(image.len());
                image[at..end].fill(if seed.chance(1, 2) { 0 } else { 0xff });
            }
        }
        log.push(format!("byte {at} (block {}), was {before:#x}", at / 1024));
    }
    log
}

/// What the reference objected to.
fn complaint(text: &str) -> String {
    let lines =
        text.lines().filter(|line| line.contains('?') || line.contains("orrupt") || line.contains("nvalid"));
    lines.take(3).collect::<Vec<_>>().join("\n")
}

#[test]
fn damaged_volumes_never_panic_or_hang() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("mutate-safe");
    for shape in SHAPES {
        let healthy = image(&scratch, shape);
        let mut seed = Seed::new(SEED);
        for _ in 0..700 {
            let mut bytes = healthy.clone();
            damage(&mut seed, &mut bytes);
            let device = MemDevice::from_image(1024, bytes);
            // Any verdict will do here; what counts is that there is one.
            let verdict = check_ext2(&device);
            assert!(verdict.is_ok() || verdict.is_err());
        }
    }
}

#[test]
fn what_the_reference_rejects_is_never_clean() {
    if !have("e2fsck") {
        return;
    }
    let runs = std::env::var("FSTITCH_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(40_u64);
    let scratch = Scratch::new("mutate-agree");
    let (mut agreed, mut stricter, mut failures) = (0, 0, Vec::new());
    for shape in SHAPES {
        let healthy = image(&scratch, shape);
        for n in 0..runs {
            let mut seed = Seed::new(SEED + 1000 * n);
            let mut bytes = healthy.clone();
            let log = damage(&mut seed, &mut bytes);
            let device = MemDevice::from_image(1024, bytes.clone());
            let ours = check_ext2(&device);
            let clean = ours.as_ref().is_ok_and(CheckReport::is_clean);
            let (code, text) = e2fsck_image(&scratch, "agree", &bytes);
            match (clean, code) {
                (true, 0) => agreed += 1,
                (false, 0) => {
                    stricter += 1;
                    if std::env::var("FSTITCH_STRICTER").is_ok() {
                        println!("stricter {}: {n} {log:?} {ours:?}\n", shape.name);
                    }
                }
                (false, _) => agreed += 1,
                (true, _) => failures.push(format!("{} run {n}: {log:?}\n{}", shape.name, complaint(&text))),
            }
        }
    }
    println!("agreed {agreed}, stricter than the reference {stricter}, missed {}", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
