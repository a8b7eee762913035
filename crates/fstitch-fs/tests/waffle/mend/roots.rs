//! A root of which one bit is wrong is the last one all the same; one that was torn is none, and no damage.

use std::sync::Arc;

use fstitch_core::{FileSystem, MemDevice};
use fstitch_fs::waffle::layout::ROOT_PLACES;
use fstitch_fs::waffle::{Root, check};

use super::mend;
use crate::damage::block;
use crate::rig::{file, is_clean, made, mount, noise};

/// A volume after an operation was made stable, and after another one was, which closed it or did not.
fn volumes(is_closed: bool) -> [Vec<u8>; 2] {
    let device = made(256);
    let fs = mount(&device);
    file(&fs, fs.root(), "first", &noise(20_000, 1)).unwrap();
    fs.sync().unwrap();
    let before = device.image();
    file(&fs, fs.root(), "second", &noise(20_000, 2)).unwrap();
    fs.sync().unwrap();
    let synced = device.image();
    if !is_closed {
        return [before, synced];
    }
    fs.unmount().unwrap();
    [synced, device.image()]
}

fn root_of(image: &[u8]) -> Root {
    Root::find(image).unwrap().unwrap()
}

fn checked(image: &[u8]) -> Vec<(&'static str, String)> {
    let report = check::check(Arc::new(MemDevice::from_image(4096, image.to_vec()))).unwrap();
    report.findings.into_iter().map(|finding| (finding.code, finding.text)).collect()
}

#[test]
fn one_bit_of_the_last_root_is_restored() {
    for is_closed in [false, true] {
        let [_, image] = volumes(is_closed);
        let root = root_of(&image);
        assert_eq!(root.is_closed, is_closed);
        for (at, bit) in
            [(0, 1), (8, 0), (60, 3), (120, 0), (120, 7), (130, 2), (187, 0), (2000, 5), (4090, 6)]
        {
            let mut damaged = image.clone();
            block(&mut damaged, root.place()).unwrap()[at] ^= 1 << bit;
            assert_eq!(root_of(&damaged).generation, root.generation - 1);
            let found = checked(&damaged);
            assert!(found.len() == 1 && found[0].0 == "root", "byte {at}: {found:?}");
            let (left, mended, device) = mend(damaged);
            assert!(left.is_empty() && mended == 1, "byte {at}: {left:?}, {mended}");
            assert!(device.image() == image, "byte {at}");
        }
        // The one before it is there for a root that is torn, and the next root goes to its place.
        let mut damaged = image.clone();
        let [first, second] = ROOT_PLACES;
        let other = if root.place() == first { second } else { first };
        block(&mut damaged, other).unwrap()[130] ^= 4;
        let (left, mended, device) = mend(damaged.clone());
        assert!(left.is_empty() && mended == 0, "{left:?}, {mended}");
        assert!(device.image() == damaged);
        // With neither of them right, the last one is what can be restored.
        block(&mut damaged, root.place()).unwrap()[256] ^= 0x10;
        let (left, mended, device) = mend(damaged);
        assert!(left.is_empty() && mended == 1, "{left:?}, {mended}");
        assert_eq!(root_of(&device.image()), root);
    }
}

/// Whatever part of a root was written when it was cut off: the one before counts, and all of that is there.
#[test]
fn a_torn_root_is_no_damage() {
    for is_closed in [false, true] {
        let [before, image] = volumes(is_closed);
        let (old, new) = (root_of(&before), root_of(&image));
        assert_eq!(old.generation + 1, new.generation);
        for cut in 1..8 {
            for has_start in [true, false] {
                let mut torn = image.clone();
                let was = block(&mut before.clone(), new.place()).unwrap().to_vec();
                let range = if has_start { cut * 512..4096 } else { 0..cut * 512 };
                block(&mut torn, new.place()).unwrap()[range.clone()].copy_from_slice(&was[range]);
                assert_eq!(root_of(&torn), old);
                assert_eq!(checked(&torn), [], "torn at {cut}");
                let (left, mended, device) = mend(torn.clone());
                assert!(left.is_empty() && mended == 0 && device.image() == torn, "torn at {cut}: {left:?}");
                mount(&device).unmount().unwrap();
                is_clean(&device);
            }
        }
    }
}
