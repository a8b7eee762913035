//! Batches of every shape arrive where they should, whichever way they go.

use std::os::unix::fs::FileExt;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Seed};
use fstitch_disk::{Direct, DiskOptions, FileDisk, Uring, probe};

use crate::{assert_holds, image, options, pattern, read, skip, ways, write};

#[test]
fn scattered_and_joined_batches_round_trip() {
    let ring_works = ring_works();
    for block_size in [512, 1024, 2048, 4096] {
        for (direct, io_uring) in ways() {
            let (_folder, path) = image(8 << 20);
            let disk =
                FileDisk::open(&path, DiskOptions { direct, io_uring, ..options(block_size) }).unwrap();
            let joined: Vec<_> = (10..1500).map(|block| (block, block)).collect();
            let scattered: Vec<_> = (0..300).map(|i| (1510 + i * 1733 % 500, i)).collect();
            write(&disk, &joined).unwrap();
            write(&disk, &scattered).unwrap();
            disk.flush().unwrap();
            assert_holds(&disk, &joined);
            assert_holds(&disk, &scattered);
            assert!(read(&disk, &[9]).unwrap()[0].iter().all(|&byte| byte == 0));
            assert_eq!(disk.uses_io_uring(), io_uring == Uring::Auto && ring_works);
        }
    }
}

/// Whether this kernel gives us rings at all, asked of another disk.
fn ring_works() -> bool {
    let (_folder, path) = image(1 << 20);
    let disk = FileDisk::open(path, options(4096)).unwrap();
    read(&disk, &[1, 3]).unwrap();
    if !disk.uses_io_uring() {
        skip("io_uring", "this kernel does not permit it");
    }
    disk.uses_io_uring()
}

#[test]
fn random_batches_agree_with_a_model() {
    for (seed, (direct, io_uring)) in (1..).zip(ways()) {
        let (_folder, path) = image((512 << 10) + 1024);
        let disk =
            FileDisk::open(&path, DiskOptions { direct, io_uring, offset: 1024, ..options(1024) }).unwrap();
        let mut random = Seed::new(seed);
        let mut model = vec![None; 512];
        for round in 0..60 {
            let mut batch = std::collections::BTreeMap::new();
            for _ in 0..=random.below(200) {
                let block = random.below(512);
                batch.insert(block, block * 1000 + round);
            }
            let batch: Vec<_> = batch.into_iter().collect();
            write(&disk, &batch).unwrap();
            for &(block, tag) in &batch {
                model[usize::try_from(block).unwrap()] = Some(tag);
            }
        }
        let written: Vec<_> = (0..).zip(&model).filter_map(|(block, tag)| Some((block, (*tag)?))).collect();
        assert_holds(&disk, &written);
        drop(disk);
        // The file itself, seen past our code, holds each block at its place after the offset.
        let file = std::fs::File::open(&path).unwrap();
        let disk = FileDisk::open(&path, DiskOptions { offset: 1024, read_only: true, ..options(1024) });
        for (block, tag) in written {
            let mut found = vec![0; 1024];
            file.read_exact_at(&mut found, 1024 + block * 1024).unwrap();
            assert!(found == pattern(disk.as_ref().unwrap(), tag)[..], "seed {seed}, block {block}");
        }
    }
}

#[test]
fn unaligned_memory_is_accepted() {
    for (direct, io_uring) in ways() {
        let (_folder, path) = image(1 << 20);
        let disk = FileDisk::open(&path, DiskOptions { direct, io_uring, ..options(4096) }).unwrap();
        let blocks = [3, 4, 5, 90, 17];
        // Five blocks, each at an odd address, but for one that is aligned.
        let aligned = pattern(&disk, 4);
        let memory: Vec<Vec<u8>> =
            blocks.iter().map(|&tag| [&[0][..], &pattern(&disk, tag)].concat()).collect();
        let writes: Vec<_> = blocks
            .iter()
            .zip(&memory)
            .map(|(&block, memory)| BlockWrite {
                block: BlockNo(block),
                kind: BlockKind::Data,
                data: if block == 4 { &aligned } else { &memory[1..] },
            })
            .collect();
        disk.write(&writes).unwrap();
        assert_holds(&disk, &blocks.map(|block| (block, block)));

        let mut memory = vec![vec![0; 4097]; blocks.len()];
        let mut reads: Vec<_> = blocks
            .iter()
            .zip(&mut memory)
            .map(|(&block, memory)| BlockRead {
                block: BlockNo(block),
                kind: BlockKind::Data,
                data: &mut memory[1..],
            })
            .collect();
        disk.read(&mut reads).unwrap();
        for (&block, memory) in blocks.iter().zip(&memory) {
            assert!(memory[1..] == pattern(&disk, block)[..], "block {block}");
        }
    }
}

#[test]
fn empty_batches_are_nothing() {
    let (_folder, path) = image(1 << 20);
    let disk = FileDisk::open(path, options(1024)).unwrap();
    disk.write(&[]).unwrap();
    disk.read(&mut []).unwrap();
}

#[test]
fn many_threads_share_a_disk() {
    let (_folder, path) = image(16 << 20);
    let disk = FileDisk::open(path, options(4096)).unwrap();
    // More threads than there are rings.
    std::thread::scope(|scope| {
        for thread in 0..12 {
            let disk = &disk;
            scope.spawn(move || {
                let mine: Vec<_> = (0..300).map(|i| (i * 12 + thread, i * 100 + thread)).collect();
                for part in mine.chunks(37) {
                    write(disk, part).unwrap();
                    assert_holds(disk, part);
                }
                assert_holds(disk, &mine);
            });
        }
    });
}

#[test]
fn geometry_follows_offset_and_size() {
    let (_folder, path) = image((1 << 20) + 700);
    let shape = |offset, size| {
        let disk = FileDisk::open(&path, DiskOptions { offset, size, ..options(1024) }).unwrap();
        let geometry = disk.geometry();
        assert_eq!((geometry.block_size, geometry.atomic_size), (1024, 512));
        geometry.block_count
    };
    assert_eq!(shape(0, None), 1024);
    assert_eq!(shape(512, None), 1024);
    assert_eq!(shape(1024, None), 1023);
    assert_eq!(shape(4096, Some(10_000)), 9);
}

#[test]
fn the_block_size_can_follow_the_superblock() {
    let (_folder, path) = image(1 << 20);
    let disk = FileDisk::open(&path, options(1024)).unwrap();
    write(&disk, &[(5, 77)]).unwrap();
    let expected = pattern(&disk, 77);
    assert_eq!(disk.read_bytes(5 * 1024, 1024).unwrap(), expected[..]);
    assert_eq!(disk.read_bytes(5 * 1024 + 100, 300).unwrap(), expected[100..400]);
    assert_eq!(probe(&path, 5 * 1024 + 7, 9).unwrap(), expected[7..16]);
    assert_eq!(probe(&path, (1 << 20) - 3, 10).unwrap(), [0; 3]);
    let disk = disk.with_block_size(4096).unwrap();
    assert_eq!(disk.geometry().block_count, 256);
    assert_eq!(read(&disk, &[1]).unwrap()[0][1024..2048], expected[..]);
    // The lock was never given up.
    assert!(FileDisk::open(&path, options(1024)).is_err());
}

#[test]
fn passed_descriptors_work_like_paths() {
    let (_folder, path) = image(1 << 20);
    // O_APPEND would send every write to the end of the file.
    let file = std::fs::OpenOptions::new().read(true).append(true).open(&path).unwrap();
    let disk = FileDisk::from_fd(file.into(), options(1024)).unwrap();
    write(&disk, &[(1, 1), (7, 7)]).unwrap();
    assert_holds(&disk, &[(1, 1), (7, 7)]);
    assert_eq!(disk.name(), path.display().to_string());
    drop(disk);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);

    let file = std::fs::File::open(&path).unwrap();
    let error = FileDisk::from_fd(file.into(), options(1024)).unwrap_err();
    assert!(error.to_string().contains("not open for reading and writing"), "{error}");
    let file = std::fs::File::open(&path).unwrap();
    let disk = FileDisk::from_fd(file.into(), DiskOptions { read_only: true, ..options(1024) }).unwrap();
    assert_eq!(read(&disk, &[7]).unwrap()[0][..], pattern(&disk, 7)[..]);
}

#[test]
fn direct_and_cached_disks_see_each_others_writes() {
    let (_folder, path) = image(1 << 20);
    let open = |direct| FileDisk::open(&path, DiskOptions { direct, lock: false, ..options(1024) }).unwrap();
    let (direct, cached) = (open(Direct::Auto), open(Direct::Never));
    assert!(!cached.is_direct());
    if !direct.is_direct() {
        return skip("direct_and_cached_disks", "no direct I/O here");
    }
    for round in 0..20 {
        write(&direct, &[(1, round), (2, round)]).unwrap();
        assert_holds(&cached, &[(1, round), (2, round)]);
        write(&cached, &[(2, round + 100), (3, round)]).unwrap();
        assert_holds(&direct, &[(1, round), (2, round + 100), (3, round)]);
    }
}
