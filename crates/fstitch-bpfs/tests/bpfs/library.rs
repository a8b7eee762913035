//! What programs have that hold the volume in their own process.
//!
//! What it prevents: ranges of one commit of which a crash leaves some, and bytes shown in place that are not those of the file.

use std::sync::Arc;

use crate::support::{CALLER, Event, check, clock, create, empty, options, watched};
use fstitch_bpfs::{Bpfs, Medium, Optimizations};
use fstitch_core::{Errno, FileSystem, InodeNo, SetAttr};
use proptest::prelude::*;

const COLUMNS: [Optimizations; 4] = [
    Optimizations::SHADOW_PAGING,
    Optimizations::SHORT_CIRCUIT,
    Optimizations::ALL_OF_THE_PAPER,
    Optimizations::ALL,
];

fn contents(fs: &Bpfs, ino: InodeNo) -> Vec<u8> {
    let mut found = Vec::new();
    let shown = fs.read_in_place(ino, (0, u64::MAX), |piece| {
        found.extend_from_slice(piece);
        Ok(())
    });
    assert_eq!(shown.unwrap(), found.len() as u64);
    let mut copied = vec![0xee; found.len() + 1];
    assert_eq!(fs.read(ino, 0, &mut copied).unwrap(), found.len());
    assert!(copied[..found.len()] == found, "what is shown in place is what is read");
    found
}

fn write(expected: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if !data.is_empty() {
        expected.resize(expected.len().max(offset + data.len()), 0);
        expected[offset..offset + data.len()].copy_from_slice(data);
    }
}

fn range() -> impl Strategy<Value = (usize, Vec<u8>)> {
    let places = vec![0_usize, 8, 64, 4096, 8192, 3 * 4096, 40 * 4096, 512 * 4096];
    let len = prop_oneof![0..20_usize, 4000..4200_usize, 1..13_000_usize];
    (proptest::sample::select(places), 0..19_usize, len, any::<u8>())
        .prop_map(|(place, by, len, byte)| ((place + by).saturating_sub(9), vec![byte; len]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Ranges of one commit are what as many writes would leave, whatever the file was before.
    #[test]
    fn ranges_are_as_writes(
        before in proptest::collection::vec((range(), 0..2_200_000_u64, 0..3_u8), 0..6),
        ranges in proptest::collection::vec(range(), 0..8),
        column in 0..COLUMNS.len(),
    ) {
        let image = empty(8 << 20);
        let (fs, _) = watched(&image, options(COLUMNS[column]), &clock());
        let ino = create(&fs, fs.root(), b"a");
        let mut expected = Vec::new();
        for ((offset, data), size, what) in &before {
            if *what == 0 {
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                fs.setattr(&CALLER, ino, &set).unwrap();
                expected.resize(usize::try_from(*size).unwrap(), 0);
            } else {
                fs.write(&CALLER, ino, *offset as u64, data).unwrap();
                write(&mut expected, *offset, data);
            }
        }
        let given: Vec<(u64, &[u8])> = ranges.iter().map(|(at, data)| (*at as u64, &data[..])).collect();
        fs.write_ranges(&CALLER, ino, &given).unwrap();
        ranges.iter().for_each(|(at, data)| write(&mut expected, *at, data));
        prop_assert!(contents(&fs, ino) == expected);
        check(&fs);
    }
}

/// At every store: all of the ranges, or none.
#[test]
fn no_crash_leaves_some_of_the_ranges() {
    let image = empty(1 << 20);
    for optimizations in COLUMNS {
        let (fs, log) = watched(&image, options(optimizations), &clock());
        let ino = create(&fs, fs.root(), b"a");
        fs.write(&CALLER, ino, 0, &[1; 20_000]).unwrap();
        let before = contents(&fs, ino);
        let mut state = fs.image();
        log.0.lock().unwrap().clear();
        let ranges: [(u64, &[u8]); 4] =
            [(3, &[2; 3]), (4090, &[3; 12]), (19_990, &[4; 30]), (100_000, &[5; 9000])];
        fs.write_ranges(&CALLER, ino, &ranges).unwrap();
        let after = contents(&fs, ino);
        let events = std::mem::take(&mut *log.0.lock().unwrap());
        let (mut seen, mut last) = ([0, 0], 0);
        for event in events {
            let Event::Store(at, bytes) = event else { continue };
            let at = usize::try_from(at).unwrap();
            state[at..at + bytes.len()].copy_from_slice(&bytes);
            let opened =
                Bpfs::open(Medium::copy_of(&state).unwrap(), options(optimizations), clock()).unwrap();
            check(&opened);
            let found = contents(&opened, InodeNo(ino.0));
            let is_after = usize::from(found == after);
            assert!(is_after == 1 || found == before, "{optimizations:?}: neither before nor after");
            assert!(is_after >= last, "{optimizations:?}: it was after, and is before again");
            (seen[is_after], last) = (seen[is_after] + 1, is_after);
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
    }
}

#[test]
fn what_cannot_be_written_as_one_is_not_written() {
    let (fs, _) = watched(&empty(1 << 20), options(Optimizations::ALL), &clock());
    let ino = create(&fs, fs.root(), b"a");
    fs.write(&CALLER, ino, 0, b"before").unwrap();
    let large = vec![1; 2 << 20];
    let refused = fs.write_ranges(&CALLER, ino, &[(0, b"after"), (0, &large)]).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSPC);
    let refused = fs.write_ranges(&CALLER, ino, &[(0, b"after"), (u64::MAX, b"x")]).unwrap_err();
    assert_eq!(refused.errno(), Errno::FBIG);
    let refused = fs.write_ranges(&CALLER, fs.root(), &[(0, b"after")]).unwrap_err();
    assert_eq!(refused.errno(), Errno::ISDIR);
    assert_eq!(contents(&fs, ino), b"before");
    check(&fs);
    let refused = fs.read_in_place(ino, (0, 6), |_| Err(Errno::AGAIN.into())).unwrap_err();
    assert_eq!(refused.errno(), Errno::AGAIN);
    let fs = Arc::new(fs);
    assert_eq!(
        fs.read_in_place(ino, (4, 100), |piece| (piece == b"re").then_some(()).ok_or(Errno::IO.into()))
            .unwrap(),
        2
    );
}
