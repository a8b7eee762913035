//! Block devices, and what the kernel does with our image. These tests need the right to make loop devices
//! and to mount; without it they say so.

use std::path::{Path, PathBuf};
use std::process::Command;

use fstitch_core::{BlockDevice, BlockNo, Error, IoOp};
use fstitch_disk::{Direct, DiskOptions, FileDisk};

use crate::{assert_holds, folder_alone, options, read, skip, write};

/// The output of a command, or nothing when it failed or does not exist.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// A loop device that goes away with the test.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(image: &Path, sector: &str) -> Option<Self> {
        let image = image.to_str()?;
        let path = run("losetup", &["--find", "--show", "--sector-size", sector, image])?;
        Some(Self(path.into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        assert!(run("losetup", &["-d", self.0.to_str().unwrap()]).is_some() || std::thread::panicking());
    }
}

/// A mount that goes away with the test.
struct Mount(PathBuf);

impl Mount {
    fn make(arguments: &[&str], point: &Path) -> Option<Self> {
        let mut arguments = arguments.to_vec();
        arguments.push(point.to_str()?);
        run("mount", &arguments).map(|_| Self(point.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        assert!(run("umount", &[self.0.to_str().unwrap()]).is_some() || std::thread::panicking());
    }
}

#[test]
fn block_devices_round_trip_and_are_claimed() {
    let (_folder, path) = folder_alone().image(4 << 20);
    for sector in [512, 4096] {
        let Some(device) = LoopDevice::over(&path, &sector.to_string()) else {
            return skip("block_devices_round_trip", "cannot make a loop device");
        };
        for (block_size, direct) in [(1024, Direct::Auto), (4096, Direct::Auto), (1024, Direct::Never)] {
            let open = || FileDisk::open(&device.0, DiskOptions { direct, ..options(block_size) });
            let disk = open().unwrap();
            assert!(disk.is_block_device() && disk.is_claimed());
            // Blocks smaller than a sector cannot go past the page cache.
            assert_eq!(disk.is_direct(), direct == Direct::Auto && block_size >= sector);
            let shape = disk.geometry();
            assert_eq!(shape.atomic_size, sector.min(block_size));
            assert_eq!(shape.bytes(), 4 << 20);
            let blocks: Vec<_> = (0..900).map(|i| (i, i + u64::from(block_size + sector))).collect();
            write(&disk, &blocks).unwrap();
            disk.flush().unwrap();
            assert_holds(&disk, &blocks);
            // Odd numbers of small blocks shrink to whole sectors.
            disk.discard(BlockNo(9), 5).unwrap();
            assert_holds(&disk, &blocks[..9]);
            assert_holds(&disk, &blocks[14..]);
            let error = open().unwrap_err();
            assert!(matches!(error, Error::Locked(_)), "{error}");
        }
    }
}

#[test]
fn direct_always_refuses_what_cannot_be_direct() {
    let (_folder, path) = folder_alone().image(4 << 20);
    let Some(device) = LoopDevice::over(&path, "4096") else {
        return skip("direct_always_refuses", "cannot make a loop device");
    };
    let open = |block_size, offset| {
        FileDisk::open(&device.0, DiskOptions { direct: Direct::Always, offset, ..options(block_size) })
    };
    assert!(open(4096, 8192).unwrap().is_direct());
    for (block_size, offset) in [(1024, 0), (4096, 1024)] {
        let error = open(block_size, offset).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
    }
}

#[test]
fn a_claimed_device_is_refused() {
    let (_folder, path) = folder_alone().image(4 << 20);
    let Some(device) = LoopDevice::over(&path, "512") else {
        return skip("a_claimed_device_is_refused", "cannot make a loop device");
    };
    let first = FileDisk::open(&device.0, options(1024)).unwrap();
    // The claim alone, as the kernel's users take it, without our lock.
    let program = "import os, sys\ntry:\n os.open(sys.argv[1], os.O_RDONLY | os.O_EXCL)\nexcept OSError as e:\n print(e.errno)";
    match run("python3", &["-c", program, device.0.to_str().unwrap()]) {
        Some(text) => assert_eq!(text, "16"),
        None => skip("a_claimed_device_is_refused", "no python3"),
    }
    drop(first);
    FileDisk::open(&device.0, options(1024)).unwrap();
}

#[test]
fn what_the_kernel_has_mounted_is_refused() {
    let (folder, path) = folder_alone().image(4 << 20);
    let point = folder.path().join("point");
    std::fs::create_dir(&point).unwrap();
    let Some(device) = LoopDevice::over(&path, "512") else {
        return skip("what_the_kernel_has_mounted", "cannot make a loop device");
    };
    let name = device.0.to_str().unwrap();
    let refusal = |path: &Path| match FileDisk::open(path, options(1024)) {
        Err(Error::Locked(message)) => message,
        other => panic!("{other:?}"),
    };
    let text = refusal(&path);
    assert!(text.contains(&format!("attached it to {name}")) && text.contains("losetup -d"), "{text}");
    if run("mke2fs", &["-q", "-F", name]).is_none() {
        return skip("what_the_kernel_has_mounted", "no mke2fs");
    }
    let Some(mount) = Mount::make(&["-t", "ext2", name], &point) else {
        return skip("what_the_kernel_has_mounted", "cannot mount");
    };
    for text in [refusal(&path), refusal(&device.0)] {
        assert!(text.contains(&format!("mounted it on {}", point.display())), "{text}");
        assert!(text.contains("umount"), "{text}");
    }
    // A descriptor that was opened before is refused as well.
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&device.0).unwrap();
    let error = FileDisk::from_fd(file.into(), options(1024)).unwrap_err();
    assert!(matches!(error, Error::Locked(_)), "{error}");
    // Readers may look.
    for path in [&path, &device.0] {
        let disk = FileDisk::open(path, DiskOptions { read_only: true, ..options(1024) }).unwrap();
        assert_eq!(read(&disk, &[1]).unwrap()[0][56..58], [0x53, 0xef]);
    }
    drop(mount);
    let text = refusal(&path);
    assert!(text.contains("attached"), "{text}");
}

/// A request of many blocks that fails as a whole still names the bad block and fills the good ones. A loop
/// device over a file that shrank answers EIO beyond the file's end.
#[test]
fn the_bad_block_of_a_large_request_is_named() {
    let (_folder, path) = folder_alone().image(4 << 20);
    let Some(device) = LoopDevice::over(&path, "512") else {
        return skip("the_bad_block", "cannot make a loop device");
    };
    let all: Vec<_> = (0..1024).map(|block| (block, block)).collect();
    for direct in [Direct::Auto, Direct::Never] {
        let image = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        image.set_len(4 << 20).unwrap();
        let disk = FileDisk::open(&device.0, DiskOptions { direct, ..options(4096) }).unwrap();
        write(&disk, &all).unwrap();
        disk.flush().unwrap();
        if direct == Direct::Never {
            // Reads are to reach the device, not the page cache.
            assert!(run("blockdev", &["--flushbufs", device.0.to_str().unwrap()]).is_some());
        }
        image.set_len(700 * 4096).unwrap();
        let numbers: Vec<_> = (600..800).chain([900, 20]).collect();
        match read(&disk, &numbers).unwrap_err() {
            Error::Io { op: IoOp::Read, block, source, .. } => {
                assert_eq!((block, source.raw_os_error()), (BlockNo(700), Some(5)));
            }
            other => panic!("{other}"),
        }
        assert_holds(&disk, &all[600..700]);
    }
}

/// A medium that runs full in the middle of a batch fails at the first block that has no room.
#[test]
fn a_full_file_system_names_the_first_block_without_room() {
    let folder = folder_alone();
    let Some(_mount) = Mount::make(&["-t", "tmpfs", "-o", "size=64k", "none"], folder.path()) else {
        return skip("a_full_file_system", "cannot mount");
    };
    let path = folder.path().join("disk.img");
    FileDisk::create(&path, 1 << 20).unwrap();
    let disk = FileDisk::open(&path, options(4096)).unwrap();
    let all: Vec<_> = (0..256).map(|block| (block, block)).collect();
    match write(&disk, &all).unwrap_err() {
        Error::Io { op: IoOp::Write, block, source, .. } => {
            assert_eq!((block, source.kind()), (BlockNo(16), std::io::ErrorKind::StorageFull));
        }
        other => panic!("{other}"),
    }
    assert_holds(&disk, &all[..16]);
}
