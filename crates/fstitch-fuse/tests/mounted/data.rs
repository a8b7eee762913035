//! Contents: large transfers, holes, allocation, appending, direct I/O, execution, running full.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::Arc;

use fstitch_core::SystemClock;
use fstitch_fs::model::{Model, ModelOptions};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use crate::harness::{mount, mount_with};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect()
}

#[test]
fn a_mebibyte_goes_through_in_one_call() {
    let Some(m) = mount() else { return };
    let data = pattern(5 << 20);
    let mut file =
        File::options().create(true).truncate(true).read(true).write(true).open(m.path("a")).unwrap();
    for chunk in data.chunks(1 << 20) {
        assert_eq!(file.write(chunk).unwrap(), chunk.len());
    }
    file.sync_all().unwrap();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == data);
    file.seek(SeekFrom::Start(3)).unwrap();
    file.sync_data().unwrap();
}

#[test]
fn direct_io_sees_and_writes_the_same_bytes() {
    let Some(m) = mount() else { return };
    let data = pattern(64 << 10);
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .custom_flags(direct)
        .open(m.path("a"))
        .unwrap();
    file.write_all_at(&data, 0).unwrap();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == data);
    file.write_all_at(b"changed", 4096).unwrap();
    drop(file);
    assert_eq!(&fs::read(m.path("a")).unwrap()[4096..4103], b"changed");
}

#[test]
fn holes_are_made_found_and_counted() {
    let Some(m) = mount() else { return };
    let file = File::options().create(true).truncate(true).read(true).write(true).open(m.path("a")).unwrap();
    file.write_all_at(&pattern(4096), 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 8);
    let seek = |at: rustix::fs::SeekFrom| rustix::fs::seek(&file, at);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(2 << 20)), Err(Errno::NXIO));
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 1 << 20, 4096).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.blocks(), meta.len()), (0, (1 << 20) + 4096));
    let mut back = [1; 4096];
    file.read_exact_at(&mut back, 1 << 20).unwrap();
    assert_eq!(back, [0; 4096], "the page cache followed");
}

#[test]
fn allocation_grows_and_zeroes() {
    let Some(m) = mount() else { return };
    let file = File::options().create(true).truncate(true).read(true).write(true).open(m.path("a")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 10_000).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!((meta.len(), meta.blocks()), (10_000, 24));
    file.write_all_at(&pattern(10_000), 0).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 100, 20_000).unwrap();
    let bytes = fs::read(m.path("a")).unwrap();
    assert_eq!(bytes.len(), 20_100);
    assert!(bytes[..100] == pattern(100) && bytes[100..].iter().all(|b| *b == 0));
    let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(Errno::OPNOTSUPP));
}

#[test]
fn truncating_drops_what_the_kernel_has_cached() {
    let Some(m) = mount() else { return };
    fs::write(m.path("a"), pattern(9000)).unwrap();
    let file = File::options().read(true).write(true).open(m.path("a")).unwrap();
    file.set_len(5000).unwrap();
    file.set_len(9000).unwrap();
    let bytes = fs::read(m.path("a")).unwrap();
    assert!(bytes[..5000] == pattern(9000)[..5000] && bytes[5000..].iter().all(|b| *b == 0));
    drop(File::options().write(true).truncate(true).open(m.path("a")).unwrap());
    assert_eq!(fs::metadata(m.path("a")).unwrap().len(), 0);
    assert_eq!(fs::metadata(m.path("a")).unwrap().blocks(), 0);
}

#[test]
fn appending_goes_to_the_end() {
    let Some(m) = mount() else { return };
    let mut one = File::options().create(true).append(true).open(m.path("a")).unwrap();
    let mut other = File::options().append(true).open(m.path("a")).unwrap();
    one.write_all(b"one").unwrap();
    other.write_all(b"two").unwrap();
    one.write_all(b"three").unwrap();
    assert_eq!(fs::read_to_string(m.path("a")).unwrap(), "onetwothree");
}

#[test]
fn programs_run_from_the_mount() {
    let Some(m) = mount() else { return };
    // The loader maps the program, so this reads through mmap.
    fs::copy("/bin/true", m.path("true")).unwrap();
    fs::set_permissions(m.path("true"), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(std::process::Command::new(m.path("true")).status().unwrap().success());
}

#[test]
fn copying_within_the_mount_works_through_the_kernel() {
    let Some(m) = mount() else { return };
    let data = pattern(300_000);
    fs::write(m.path("a"), &data).unwrap();
    let (from, to) = (File::open(m.path("a")).unwrap(), File::create(m.path("b")).unwrap());
    let mut done = 0;
    while done < data.len() {
        done += rustix::fs::copy_file_range(&from, None, &to, None, data.len() - done).unwrap();
    }
    assert!(fs::read(m.path("b")).unwrap() == data);
}

#[test]
fn a_full_volume_says_so_and_recovers() {
    let options = ModelOptions { blocks: 64, ..ModelOptions::default() };
    let Some(m) = mount_with(Arc::new(Model::with(options, Arc::new(SystemClock::new()))), |_| {}) else {
        return;
    };
    let full = fs::write(m.path("a"), pattern(80 * 4096)).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    assert_eq!(fs::metadata(m.path("a")).unwrap().len(), 64 * 4096);
    assert_eq!(rustix::fs::statvfs(m.root()).unwrap().f_bavail, 0);
    // The kernel tells of a removed file's end behind the remover's back; whoever writes next must not notice.
    for _ in 0..100 {
        fs::remove_file(m.path("a")).unwrap();
        fs::write(m.path("a"), pattern(64 * 4096)).unwrap();
    }
}

#[test]
fn a_write_into_space_that_was_just_removed_is_whole() {
    let options = ModelOptions { blocks: 64, ..ModelOptions::default() };
    let Some(m) = mount_with(Arc::new(Model::with(options, Arc::new(SystemClock::new()))), |_| {}) else {
        return;
    };
    // The kernel tells of the removed file's end when the next write is on its way: that must not become a short one.
    for round in 0..100 {
        let data = pattern(if round % 2 == 0 { 60 } else { 40 } * 4096);
        assert_eq!(File::create(m.path("a")).unwrap().write(&data).unwrap(), data.len(), "round {round}");
        fs::remove_file(m.path("a")).unwrap();
    }
    // What does not fit is short all the same, and what is nothing is refused.
    let mut file = File::create(m.path("a")).unwrap();
    assert_eq!(file.write(&pattern(80 * 4096)).unwrap(), 64 * 4096);
    assert_eq!(file.write(b"x").unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
}

#[test]
fn two_programs_see_one_file() {
    let Some(m) = mount() else { return };
    let mut writer = File::create(m.path("a")).unwrap();
    let mut reader = File::open(m.path("a")).unwrap();
    let mut seen = String::new();
    for part in ["first ", "second ", "third"] {
        writer.write_all(part.as_bytes()).unwrap();
        reader.read_to_string(&mut seen).unwrap();
    }
    assert_eq!(seen, "first second third");
}
