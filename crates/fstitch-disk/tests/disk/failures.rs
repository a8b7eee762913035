//! What cannot be done is refused with the block's number, and nothing else happens.

use std::os::unix::fs::MetadataExt;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite, Errno, Error, IoOp};
use fstitch_disk::{DiskOptions, FileDisk, probe};

use crate::{assert_holds, image, options, read, skip, ways, write};

#[track_caller]
fn assert_io(error: &Error, wanted: IoOp, at: u64) -> std::io::ErrorKind {
    match error {
        Error::Io { op, block, source, .. } => {
            assert_eq!((*op, *block), (wanted, BlockNo(at)), "{error}");
            source.kind()
        }
        other => panic!("{other}"),
    }
}

#[test]
fn blocks_outside_the_volume_are_refused_before_anything_is_written() {
    let (_folder, path) = image(1 << 20);
    let disk =
        FileDisk::open(&path, DiskOptions { offset: 4096, size: Some(65_536), ..options(1024) }).unwrap();
    let error = write(&disk, &[(3, 3), (64, 64)]).unwrap_err();
    assert_eq!(assert_io(&error, IoOp::Write, 64), std::io::ErrorKind::InvalidInput);
    assert!(read(&disk, &[3]).unwrap()[0].iter().all(|&byte| byte == 0));
    assert_io(&read(&disk, &[u64::MAX]).unwrap_err(), IoOp::Read, u64::MAX);
    assert_io(&disk.discard(BlockNo(60), 5).unwrap_err(), IoOp::Discard, 64);
    assert_io(&disk.discard(BlockNo(1), u64::MAX).unwrap_err(), IoOp::Discard, 64);
    assert_io(&disk.read_bytes(65_530, 7).unwrap_err(), IoOp::Read, 64);
    assert!(disk.read_bytes(u64::MAX, 7).is_err());
    let short = BlockWrite { block: BlockNo(5), kind: BlockKind::Data, data: &[0; 512] };
    assert_io(&disk.write(&[short]).unwrap_err(), IoOp::Write, 5);
}

#[test]
fn a_failure_says_which_device_which_block_and_what_it_is() {
    let (_folder, path) = image(1 << 20);
    let disk = FileDisk::open(&path, options(1024)).unwrap();
    let wrong = BlockWrite { block: BlockNo(5), kind: BlockKind::InodeBitmap, data: &[0; 512] };
    let error = disk.write(&[wrong]).unwrap_err();
    let Error::Io { op, block, kind, device, .. } = &error else { panic!("{error}") };
    assert_eq!((*op, *block, *kind), (IoOp::Write, BlockNo(5), Some(BlockKind::InodeBitmap)));
    assert_eq!(device.as_deref(), path.to_str());
    let text = format!("write failed at block 5 (inode bitmap) of {}: ", path.display());
    assert!(error.to_string().starts_with(&text), "{error}");
}

#[test]
fn a_file_that_shrank_fails_at_the_first_missing_block() {
    for (direct, io_uring) in ways() {
        let (_folder, path) = image(1 << 20);
        let disk = FileDisk::open(&path, DiskOptions { direct, io_uring, ..options(4096) }).unwrap();
        write(&disk, &[(1, 1), (99, 99)]).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        for tail in [300, 0] {
            file.set_len(100 * 4096 + tail).unwrap();
            // One request across the new end, then several, of which the last two fail.
            let error = read(&disk, &(90..110).collect::<Vec<_>>()).unwrap_err();
            assert_eq!(assert_io(&error, IoOp::Read, 100), std::io::ErrorKind::UnexpectedEof);
            assert_io(&read(&disk, &[200, 1, 98, 99, 100, 101, 50]).unwrap_err(), IoOp::Read, 100);
        }
        assert_holds(&disk, &[(1, 1), (99, 99)]);
    }
}

#[test]
fn a_truncated_file_is_not_written_to_and_never_stable_again() {
    for (direct, io_uring) in ways() {
        let (_folder, path) = image(1 << 20);
        let disk = FileDisk::open(&path, DiskOptions { direct, io_uring, ..options(4096) }).unwrap();
        write(&disk, &[(1, 1), (255, 255)]).unwrap();
        disk.flush().unwrap();
        disk.intact().unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(100 * 4096).unwrap();
        let named = |error: &Error| {
            let text = error.to_string();
            let sizes = text.contains("409600 bytes") && text.contains("1048576");
            assert!(sizes && text.contains("disk.img has been truncated"), "{text}");
        };
        named(&read(&disk, &[1, 200]).unwrap_err());
        let error = write(&disk, &[(255, 7)]).unwrap_err();
        named(&error);
        assert_io(&error, IoOp::Write, 255);
        assert_eq!(file.metadata().unwrap().len(), 100 * 4096, "it did not grow into zeros");
        named(&disk.flush().unwrap_err());
        named(&disk.intact().unwrap_err());
        file.set_len(1 << 20).unwrap();
        named(&disk.flush().unwrap_err());
        named(&disk.intact().unwrap_err());
        assert_holds(&disk, &[(1, 1)]);
    }
}

#[test]
fn a_disk_opened_for_reading_refuses_writes() {
    let (_folder, path) = image(1 << 20);
    let disk = FileDisk::open(&path, DiskOptions { read_only: true, ..options(1024) }).unwrap();
    let error = write(&disk, &[(7, 7)]).unwrap_err();
    assert_eq!(assert_io(&error, IoOp::Write, 7), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_io(&disk.discard(BlockNo(7), 1).unwrap_err(), IoOp::Discard, 7);
    disk.flush().unwrap();
    assert!(disk.is_read_only());
}

#[test]
fn what_is_no_volume_is_refused_by_name() {
    let (folder, path) = image(1000);
    let message = |path: &std::path::Path, options| FileDisk::open(path, options).unwrap_err().to_string();
    let text = message(&path, options(1024));
    assert!(text.contains("disk.img: its 1000 bytes hold no block of 1024 bytes"), "{text}");
    let text = message(&path, DiskOptions { size: Some(2000), ..options(512) });
    assert!(text.contains("2000 bytes from byte 0 do not fit its 1000 bytes"), "{text}");
    let text = message(&path, DiskOptions { offset: 4096, ..options(512) });
    assert!(text.contains("from byte 4096"), "{text}");
    assert!(message(folder.path(), options(1024)).contains("is a directory"));
    assert!(message("/dev/null".as_ref(), options(1024)).contains("is a character device"));
    let text = message(&folder.path().join("absent"), options(1024));
    assert!(text.starts_with("open failed: ") && text.contains("absent: No such file"), "{text}");
    assert!(probe(folder.path().join("absent"), 0, 1).is_err());
    let error = FileDisk::open(&path, options(1000)).unwrap_err();
    assert_eq!(error.errno(), Errno::OPNOTSUPP);
}

#[test]
fn creating_never_touches_an_existing_file() {
    let (_folder, path) = image(4096);
    let error = FileDisk::create(&path, 8192).unwrap_err();
    assert_eq!(assert_io(&error, IoOp::Open, 0), std::io::ErrorKind::AlreadyExists);
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!((found.len(), found.blocks()), (4096, 0));
}

#[test]
fn discarded_blocks_of_a_file_give_their_room_back() {
    for (direct, io_uring) in ways() {
        let (_folder, path) = image(1 << 20);
        let disk = FileDisk::open(&path, DiskOptions { direct, io_uring, ..options(1024) }).unwrap();
        let all: Vec<_> = (0..1024).map(|block| (block, block)).collect();
        write(&disk, &all).unwrap();
        disk.flush().unwrap();
        let before = std::fs::metadata(&path).unwrap().blocks();
        // Neither end lies on a page.
        disk.discard(BlockNo(101), 801).unwrap();
        disk.discard(BlockNo(3), 0).unwrap();
        disk.flush().unwrap();
        if std::fs::metadata(&path).unwrap().blocks() == before {
            return skip("discarded_blocks_of_a_file", "no holes on this file system");
        }
        let gone = read(&disk, &(101..902).collect::<Vec<_>>()).unwrap();
        assert!(gone.iter().all(|block| block.iter().all(|&byte| byte == 0)));
        assert_holds(&disk, &all[..101]);
        assert_holds(&disk, &all[902..]);
        write(&disk, &[(500, 5)]).unwrap();
        assert_holds(&disk, &[(500, 5), (100, 100), (902, 902)]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
    }
}
