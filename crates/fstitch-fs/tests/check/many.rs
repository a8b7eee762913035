//! A directory with more subdirectories than its count of links can hold: never mended, or emptied.

use std::sync::Arc;

use fstitch_core::RepairMode;
use fstitch_core::{Caller, FileSystem, Le, MemDevice, SystemClock, Timestamp};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};

use crate::repair::repair;
use crate::support::{Scratch, e2fsck_image, have};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0 };
/// Where the read-only compatible features are.
const FEATURES: usize = 1024 + 0x64;
/// `dir_nlink`.
const DIR_NLINK: u32 = 0x20;
/// More than the format counts.
const MANY: usize = 65_100;

/// Opens the volume, lets `work` change it, and unmounts it.
fn use_it(image: Vec<u8>, work: impl FnOnce(&dyn FileSystem)) -> Vec<u8> {
    let device = Arc::new(MemDevice::from_image(1024, image));
    let (fs, _) = arrange::open::<Ext2>(
        Arc::clone(&device) as _,
        &Arrangement::default(),
        Arc::new(SystemClock::new()),
    )
    .expect("it can be mounted");
    work(&fs);
    fs.unmount().expect("unmounted");
    drop(fs);
    device.image()
}

/// Where inode `ino` starts.
fn place(image: &[u8], ino: u64) -> usize {
    let number = |at: usize| usize::try_from(Le::u32(image, at)).expect("small");
    let (per_group, at) = (number(1024 + 0x28), usize::try_from(ino - 1).expect("small"));
    let table = number(2048 + 32 * (at / per_group) + 8);
    table * 1024 + at % per_group * usize::from(Le::u16(image, 1024 + 0x58))
}

#[test]
fn directories_of_too_many_subdirectories_are_counted_as_others_do() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("many");
    let mut options = MkfsOptions::new([1; 16], [2; 16], Timestamp { secs: 1_700_000_000, nanos: 0 });
    options.block_size = Some(1024);
    options.inode_size = Some(128);
    options.inodes = Some(66_000);
    options.device_is_zero = true;
    let device = MemDevice::new(1024, 96 << 10);
    mkfs(&device, &options, &mut |_, _| {}).expect("a volume");
    let judge = |what: &str, image: &[u8]| {
        let report = check_ext2(&MemDevice::from_image(1024, image.to_vec())).expect("readable");
        assert!(report.is_clean(), "{what}: {:#?}", report.findings);
        let (code, text) = e2fsck_image(&scratch, "judge", image);
        assert_eq!(code, 0, "{what}: {text}");
    };
    let mut ino = 0;
    let mut image = use_it(device.image(), |fs| {
        ino = fs.mkdir(&CALLER, fs.root(), b"top", 0o755).expect("a directory").attr.ino.get();
    });
    let links = place(&image, ino) + 0x1a;
    assert_eq!(Le::u16(&image, links), 2);
    Le::put_u16(&mut image, links, 1);
    let features = Le::u32(&image, FEATURES);
    Le::put_u32(&mut image, FEATURES, features | DIR_NLINK);
    let name = |number: usize| format!("{number}").into_bytes();
    let mut image = use_it(image, |fs| {
        let top = fs.lookup(fs.root(), b"top").expect("it is there").attr.ino;
        for number in 0..MANY {
            fs.mkdir(&CALLER, top, &name(number), 0o755).expect("a directory");
        }
        fs.rmdir(&CALLER, top, &name(7)).expect("removed");
        assert_eq!(fs.getattr(top).expect("it is there").nlink, 1);
    });
    judge("made", &image);
    // The feature is lost, and with it the reason of the count.
    for links_found in [1, 40_000, 65_535] {
        Le::put_u16(&mut image, links, links_found);
        Le::put_u32(&mut image, FEATURES, features & !DIR_NLINK);
        let device = MemDevice::from_image(1024, image);
        let report = check_ext2(&device).expect("readable");
        assert!(
            report.findings.iter().any(|found| found.code == "dir-nlink-feature"),
            "{:#?}",
            report.findings
        );
        let mended = repair(&device, RepairMode::Yes).expect("readable");
        assert!(mended.left.is_clean(), "{:#?}", mended.left.findings);
        image = device.image();
        assert_eq!(Le::u16(&image, links), 1);
        judge("mended", &image);
    }
}
