//! The scan of a volume in use finds all that leaked, and nothing that somebody is using meanwhile.

use std::fs;

use fstitch_core::MemDevice;
use fstitch_fs::check::{LeakScan, Leaks, ScanProgress};
use fstitch_fs::ext2::view::BlockView;

use crate::corpus::{SHAPES, debugfs, image};
use crate::support::{Scratch, have, run};

/// What must be known of an image's files.
struct Known {
    slow: u32,
    fast: u32,
    indirect: u32,
    dir: u32,
}

fn ino(path: &std::path::Path, name: &str) -> u32 {
    let (_, text) = run("debugfs", &["-R", &format!("stat {name}"), path.to_str().expect("plain path")]);
    let number = text.split_whitespace().nth(1).expect("Inode: N");
    number.parse().expect("a number")
}

/// A healthy image, and the same after `script`.
fn images(scratch: &Scratch, script: &str) -> (Vec<u8>, Vec<u8>, Known) {
    let healthy = image(scratch, &SHAPES[0]);
    let path = scratch.path("leaky");
    fs::write(&path, &healthy).expect("an image");
    let known = Known {
        slow: ino(&path, "slow"),
        fast: ino(&path, "fast"),
        indirect: ino(&path, "indirect"),
        dir: ino(&path, "d3"),
    };
    debugfs(scratch, &path, script);
    (healthy, fs::read(&path).expect("the image"), known)
}

/// Scans `before`; after `steps` steps it has become `after`, of which `touch` tells the scan.
fn scan(before: Vec<u8>, after: Vec<u8>, steps: usize, touch: impl FnOnce(&mut LeakScan)) -> Leaks {
    let first = MemDevice::from_image(1024, before);
    let second = MemDevice::from_image(1024, after);
    let raw = first.image()[1024..2048].to_vec();
    let mut scan = LeakScan::new(&BlockView::new(&first, 1024), &raw).expect("a sound superblock");
    for _ in 0..steps {
        scan.step(&BlockView::new(&first, 1024)).expect("readable");
    }
    touch(&mut scan);
    while scan.progress() != ScanProgress::Done {
        scan.step(&BlockView::new(&second, 1024)).expect("readable");
    }
    scan.finish(&BlockView::new(&second, 1024)).expect("readable")
}

#[test]
fn all_that_leaked_is_found() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("leaks");
    let script = "setb 2900 5\nseti <500>\nunlink slow\nunlink d3\nsif fast links_count 7\nln d5/e a/second";
    let (_, leaky, known) = images(&scratch, script);
    let leaks = scan(leaky.clone(), leaky.clone(), 1, |_| {});
    assert_eq!(leaks.report.corrupt, 0, "{:?}", leaks.report.findings);
    assert_eq!(leaks.blocks, [(2900, 5)]);
    assert_eq!(leaks.inodes, [500]);
    // The deleted directory, what was in it (a directory and a file), and the link.
    assert_eq!(leaks.nameless.len(), 4, "{leaks:?}");
    assert!(leaks.nameless.contains(&known.slow) && leaks.nameless.contains(&known.dir));
    assert!(leaks.links_high.contains(&(known.fast, 1)), "{leaks:?}");
    assert_eq!(leaks.two_names.len(), 1);

    let touched = scan(leaky.clone(), leaky, 1, |scan| {
        (2900..2903).for_each(|block| scan.touch_block(block));
        [500, known.slow, known.fast, known.dir].into_iter().for_each(|ino| scan.touch_inode(ino));
    });
    assert_eq!(touched.blocks, [(2903, 2)]);
    assert!(touched.inodes.is_empty() && touched.nameless.is_empty(), "{touched:?}");
    assert!(touched.links_high.iter().all(|&(ino, _)| ino != known.fast));
}

#[test]
fn a_file_moved_behind_the_scan_is_not_lost() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("leaks-move");
    let (before, after, known) = images(&scratch, "ln indirect d0/e/moved\nunlink indirect");
    let parent = {
        let path = scratch.path("leaky");
        ino(&path, "d0/e")
    };
    for steps in 0..4 {
        let leaks = scan(before.clone(), after.clone(), steps, |scan| {
            [2, parent, known.indirect].into_iter().for_each(|ino| scan.touch_inode(ino));
        });
        assert!(leaks.nameless.is_empty() && leaks.blocks.is_empty(), "{steps}: {leaks:?}");
        assert_eq!(leaks.report.corrupt, 0, "{steps}: {:?}", leaks.report.findings);
    }
}

#[test]
fn a_healthy_volume_has_no_leaks() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("leaks-none");
    for shape in SHAPES {
        let healthy = image(&scratch, shape);
        let device = MemDevice::from_image(1024, healthy.clone());
        let size = 1024 << healthy[1024 + 0x18];
        let view = BlockView::new(&device, size);
        let leaks =
            LeakScan::new(&view, &healthy[1024..2048]).expect("sound").finish(&view).expect("readable");
        assert!(leaks.report.is_clean(), "{}: {:?}", shape.name, leaks.report.findings);
        assert!(leaks.blocks.is_empty() && leaks.inodes.is_empty() && leaks.nameless.is_empty());
    }
}
