//! What random operations meet seldom, under every set of optimisations.
//!
//! What it prevents: attributes whose blocks are free while they are used, contents of an earlier life, and room that an operation which
//! had none has kept.

use std::time::Duration;

use crate::support::{CALLER, Event, check, clock, create, empty, options, watched};
use fstitch_bpfs::{Bpfs, Medium, Optimizations};
use fstitch_core::{Errno, FileSystem, InodeNo, SetAttr, XattrSetMode};

const COLUMNS: [Optimizations; 6] = [
    Optimizations::SHADOW_PAGING,
    Optimizations::SHORT_CIRCUIT,
    Optimizations::APPEND_AND_TIMES,
    Optimizations::ALL_OF_THE_PAPER,
    Optimizations::JOURNAL,
    Optimizations::ALL,
];

fn each(bytes: u64, test: impl Fn(&Bpfs, Optimizations)) {
    let image = empty(bytes);
    for optimizations in COLUMNS {
        let (fs, _) = watched(&image, options(optimizations), &clock());
        test(&fs, optimizations);
        check(&fs);
    }
}

fn free(fs: &Bpfs) -> u64 {
    fs.statfs().unwrap().blocks_free
}

fn resize(fs: &Bpfs, ino: InodeNo, size: u64) {
    fs.setattr(&CALLER, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// Attributes of several blocks take the place of others, of as many blocks, fewer and more.
#[test]
fn attributes_of_several_blocks_take_the_place_of_others() {
    each(1 << 20, |fs, optimizations| {
        let ino = create(fs, fs.root(), b"a");
        let before = free(fs);
        for len in [10, 5000, 5000, 9000, 60_000, 100, 5000, 4089, 4090, 0, 8000] {
            let value = vec![u8::try_from(len % 251).unwrap(); len];
            fs.setxattr(&CALLER, ino, b"user.a", &value, XattrSetMode::Set).unwrap();
            check(fs);
            let opened =
                Bpfs::open(Medium::copy_of(&fs.image()).unwrap(), options(optimizations), clock()).unwrap();
            check(&opened);
            assert!(opened.getxattr(ino, b"user.a").unwrap() == value, "{optimizations:?}: {len} bytes");
        }
        fs.removexattr(&CALLER, ino, b"user.a").unwrap();
        assert_eq!(free(fs), before, "{optimizations:?}");
    });
}

/// A file that became empty and long again holds nothing.
#[test]
fn a_file_that_grows_from_nothing_shows_nothing() {
    each(1 << 20, |fs, optimizations| {
        for old in [10, 20_000] {
            for new in [5, 3000, 9000, 3_000_000] {
                let ino = create(fs, fs.root(), b"a");
                fs.write(&CALLER, ino, 0, &vec![7; old]).unwrap();
                resize(fs, ino, 0);
                resize(fs, ino, new);
                check(fs);
                let mut found = vec![1; usize::try_from(new).unwrap()];
                assert_eq!(fs.read(ino, 0, &mut found).unwrap(), found.len());
                assert!(found.iter().all(|byte| *byte == 0), "{optimizations:?}: {old} bytes, then {new}");
                fs.unlink(&CALLER, fs.root(), b"a").unwrap();
            }
        }
    });
}

/// Operations for which there is no room, wherever they find out.
#[test]
fn what_there_is_no_room_for_takes_none() {
    each(1 << 20, |fs, optimizations| {
        let ino = create(fs, fs.root(), b"a");
        fs.write(&CALLER, ino, 0, &[1; 20_000]).unwrap();
        let filler = create(fs, fs.root(), b"filler");
        let mut failed = 0;
        for left in (0..14).rev() {
            let room = free(fs);
            if room > left {
                let size = fs.getattr(filler).unwrap().size;
                let more = vec![2; usize::try_from((room - left) * 4096).unwrap()];
                // It may take some blocks for pointers, so less may be left.
                let _ = fs.write(&CALLER, filler, size, &more);
            }
            let before = free(fs);
            let ranges: [(u64, &[u8]); 3] = [(10, &[3; 100]), (5000, &[3; 100]), (9000, &[3; 100])];
            let tried = [
                fs.write_ranges(&CALLER, ino, &ranges),
                fs.setxattr(&CALLER, ino, b"user.a", &[4; 9000], XattrSetMode::Set),
            ];
            check(fs);
            if tried.iter().all(Result::is_err) {
                assert_eq!(free(fs), before, "{optimizations:?}: {left} blocks were left");
                failed += 1;
            }
            let _ = fs.removexattr(&CALLER, ino, b"user.a");
        }
        assert!(failed > 0, "{optimizations:?}: there was room for everything");
    });
}

/// As many words as the micro-journal takes, fewer and more.
#[test]
fn any_number_of_words_is_one_commit() {
    each(1 << 20, |fs, optimizations| {
        let ino = create(fs, fs.root(), b"a");
        let mut expected = vec![1; 60_000];
        fs.write(&CALLER, ino, 0, &expected).unwrap();
        for count in 1..=14_u8 {
            let word = [count + 1; 8];
            // Two in each block.
            let places: Vec<usize> = (0..usize::from(count)).map(|n| n / 2 * 4096 + n % 2 * 80).collect();
            let ranges: Vec<(u64, &[u8])> = places.iter().map(|at| (*at as u64, &word[..])).collect();
            fs.write_ranges(&CALLER, ino, &ranges).unwrap();
            places.iter().for_each(|at| expected[*at..*at + 8].copy_from_slice(&word));
            let opened =
                Bpfs::open(Medium::copy_of(&fs.image()).unwrap(), options(optimizations), clock()).unwrap();
            let mut found = vec![0; expected.len()];
            assert_eq!(opened.read(ino, 0, &mut found).unwrap(), found.len());
            assert!(found == expected, "{optimizations:?}: {count} words");
        }
    });
}

/// The last name of a file that somebody holds goes by one word: nobody can see after a crash when that was.
#[test]
fn the_last_name_of_a_held_file_goes_by_one_word() {
    let (image, clock) = (empty(1 << 20), clock());
    let (fs, log) = watched(&image, options(Optimizations::ALL), &clock);
    for (number, is_written) in [(1, false), (2, true)] {
        let held = fs.mknod(&CALLER, fs.root(), b"held", 0o100_644, 0).unwrap().attr;
        if is_written {
            clock.advance(Duration::from_secs(1));
            fs.write(&CALLER, held.ino, 0, b"contents").unwrap();
            clock.advance(Duration::from_secs(1));
            fs.setattr(&CALLER, held.ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
        }
        clock.advance(Duration::from_secs(1));
        // The directory's times are those of this moment.
        create(&fs, fs.root(), format!("other-{number}").as_bytes());
        let (before, attr) = (fs.counts(), fs.getattr(held.ino).unwrap());
        log.0.lock().unwrap().clear();
        fs.unlink(&CALLER, fs.root(), b"held").unwrap();
        let after = fs.counts();
        assert_eq!((after.commits - before.commits, after.journaled - before.journaled), (1, 0));
        let events = log.0.lock().unwrap().clone();
        assert!(
            matches!(&events[..], [.., Event::Store(..), Event::Fence, Event::Store(_, times)] if times.len() <= 16),
            "the time comes behind the fence: {events:?}"
        );
        let now = fs.getattr(held.ino).unwrap();
        assert_eq!((now.nlink, now.mtime), (0, attr.mtime));
        assert_eq!(now.ctime.secs, attr.ctime.secs + 1);
        fs.forget(held.ino, 1);
        check(&fs);
    }
}

/// A directory that was looked into when it was gone leaves nothing to the next one of its number.
#[test]
fn a_directory_of_a_number_that_is_taken_again_is_empty() {
    let image = empty(1 << 20);
    let (fs, _) = watched(&image, options(Optimizations::ALL), &clock());
    let root = fs.root();
    let dir = fs.mkdir(&CALLER, root, b"dir", 0o755).unwrap().attr.ino;
    create(&fs, dir, b"a");
    fs.unlink(&CALLER, dir, b"a").unwrap();
    fs.rmdir(&CALLER, root, b"dir").unwrap();
    assert_eq!(fs.lookup(dir, b"a").unwrap_err().errno(), Errno::NOENT);
    fs.forget(dir, 1);
    // With this commit what was before is durable.
    create(&fs, root, b"between");
    let next = fs.mkdir(&CALLER, root, b"next", 0o755).unwrap().attr.ino;
    assert_eq!(next, dir, "its number is the first free one");
    create(&fs, next, b"file");
    check(&fs);
    let opened = Bpfs::open(Medium::copy_of(&fs.image()).unwrap(), options(Optimizations::ALL), clock());
    opened.unwrap().lookup(next, b"file").unwrap();
}

/// A number that became free by the operation before is taken where there is no room for another one.
#[test]
fn the_last_free_number_can_be_taken_at_once() {
    let image = empty(1 << 20);
    let (fs, _) = watched(&image, options(Optimizations::ALL), &clock());
    let root = fs.root();
    let held = fs.mknod(&CALLER, root, b"held", 0o100_644, 0).unwrap().attr.ino;
    let large = create(&fs, root, b"large");
    let mut number = 0;
    // Names until there is no room for inodes or entries, then contents until there is none at all, by bytes that need a block.
    while fs.statfs().unwrap().blocks_free > 0 {
        fs.write(&CALLER, large, number * 4096, &[7]).unwrap();
        number += 1;
    }
    let mut made = 0;
    while fs.mknod(&CALLER, root, format!("{made}").as_bytes(), 0o100_644, 0).is_ok() {
        made += 1;
    }
    fs.unlink(&CALLER, root, b"held").unwrap();
    fs.forget(held, 1);
    create(&fs, root, b"new");
    check(&fs);
}
