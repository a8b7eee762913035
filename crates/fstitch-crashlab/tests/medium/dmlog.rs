//! Logs in the format of dm-log-writes: written, read back, made by others, and damaged.

use std::collections::BTreeMap;

use fstitch_core::{BlockKind, Geometry};
use fstitch_crashlab::medium::{DmLogError, DmLogReader, Event, Level, Log, Mark, RequestNo, export, import};
use proptest::prelude::*;

use crate::past::{BLOCKS, Past, contents, images_after};
use crate::property::{past, step};

const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
const METADATA: u64 = 16;

fn geometry() -> Geometry {
    Geometry { block_size: 1024, block_count: BLOCKS, atomic_size: 1024 }
}

/// A log made byte by byte, as the kernel writes it.
struct Foreign {
    sector: usize,
    entries: u64,
    bytes: Vec<u8>,
}

impl Foreign {
    fn new(sector: usize) -> Self {
        Self { sector, entries: 0, bytes: vec![] }
    }

    fn entry(mut self, sector: u64, count: u64, flags: u64, text: &[u8], data: &[u8]) -> Self {
        let mut head = vec![0; self.sector];
        let len = u64::try_from(text.len()).unwrap();
        for (at, field) in [sector, count, flags, len].into_iter().enumerate() {
            head[at * 8..][..8].copy_from_slice(&field.to_le_bytes());
        }
        head[32..32 + text.len()].copy_from_slice(text);
        self.bytes.extend(head);
        self.bytes.extend(data);
        self.entries += 1;
        self
    }

    fn finish(self) -> Vec<u8> {
        let mut bytes = vec![0; self.sector];
        bytes[..8].copy_from_slice(b"rhswfsj\0");
        bytes[8] = 1;
        bytes[16..24].copy_from_slice(&self.entries.to_le_bytes());
        bytes[24..28].copy_from_slice(&u32::try_from(self.sector).unwrap().to_le_bytes());
        bytes.extend(self.bytes);
        bytes
    }
}

fn write(request: u32, block: u64, kind: BlockKind, text: &str, fua: bool) -> Event {
    Event::Write { request: RequestNo(request), block, kind, data: contents(text), fua }
}

#[test]
fn a_log_made_by_others_is_read() {
    let two_blocks = [&*contents("xX"), &*contents("yY")].concat();
    let bytes = Foreign::new(512)
        .entry(0, 0, MARK, b"mkfs\0", &[])
        .entry(2, 4, METADATA, &[], &two_blocks)
        .entry(0, 0, FLUSH, &[], &[])
        .entry(0, 2, FUA, &[], &contents("zZ"))
        .entry(1, 4, DISCARD, &[], &[])
        .entry(0, 2, FLUSH | FUA, &[], &contents("wW"))
        .entry(0, 0, MARK, b"fstitch promise 4", &[])
        .finish();
    let imported = import(&bytes, geometry()).unwrap();
    let foreign = 1 << 63;
    let expected = [
        Event::Mark(Mark::Note(foreign)),
        write(0, 1, BlockKind::Inode, "xX", false),
        write(1, 2, BlockKind::Inode, "yY", false),
        Event::Ack(RequestNo(0)),
        Event::Ack(RequestNo(1)),
        Event::FlushIssued(RequestNo(2)),
        Event::FlushAcked(RequestNo(2)),
        write(3, 0, BlockKind::Data, "zZ", true),
        Event::Ack(RequestNo(3)),
        // Half of block 0 and half of block 2 stay.
        Event::Discard { request: RequestNo(4), start: 1, count: 1 },
        Event::Ack(RequestNo(4)),
        Event::FlushIssued(RequestNo(5)),
        Event::FlushAcked(RequestNo(5)),
        write(6, 0, BlockKind::Data, "wW", true),
        Event::Ack(RequestNo(6)),
        Event::Mark(Mark::Promise(4)),
    ];
    assert_eq!(imported.log.events, expected);
    assert_eq!(imported.names, BTreeMap::from([(foreign, "mkfs".to_owned())]));
    let again = export(&imported.log, &imported.names);
    let again = import(&again, geometry()).unwrap();
    assert_eq!(again.names, imported.names, "foreign marks survive");
    assert_eq!(again.log.events.len(), imported.log.events.len());
}

#[test]
fn fua_in_a_foreign_log_makes_nothing_else_stable() {
    let bytes = Foreign::new(512)
        .entry(2, 2, 0, &[], &contents("xX"))
        .entry(0, 2, FUA, &[], &contents("zZ"))
        .finish();
    let log = import(&bytes, geometry()).unwrap().log;
    let images: Vec<String> = images_after(&log, log.events.len(), Level::M2).into_iter().collect();
    assert_eq!(images, ["zZbBcC", "zZxXcC"]);
}

#[test]
fn large_sectors_count_in_their_own_units() {
    let data: Vec<u8> = ["aX", "bX", "cX", "dX"].iter().flat_map(|text| contents(text).to_vec()).collect();
    let bytes = Foreign::new(4096).entry(1, 1, 0, &[], &data).finish();
    let wide = Geometry { block_count: 8, ..geometry() };
    let log = import(&bytes, wide).unwrap().log;
    let blocks: Vec<u64> = log
        .events
        .iter()
        .filter_map(|event| if let Event::Write { block, .. } = event { Some(*block) } else { None })
        .collect();
    assert_eq!(blocks, [4, 5, 6, 7]);
}

#[test]
fn the_order_of_entries_is_the_order_of_stability() {
    // The kernel's own example: W1, W2, W3, C3, C2, flush, C1, flush done: 3 and 2, the flush, 1.
    let mut past = Past::new();
    let (one, two, three) = (past.write(0, "xX"), past.write(1, "yY"), past.write(2, "zZ"));
    past.ack(three);
    past.ack(two);
    let flush = past.flush();
    past.ack(one);
    past.flush_acked(flush);
    past.write(0, "nN");
    let log = import(&export(&past.log, &BTreeMap::new()), geometry()).unwrap().log;
    let places: Vec<String> = log
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Write { block, .. } => Some(block.to_string()),
            Event::FlushAcked(_) => Some("flush".into()),
            _ => None,
        })
        .collect();
    assert_eq!(places, ["1", "2", "flush", "0"]);
}

#[test]
fn bad_logs_are_refused_with_the_reason() {
    let good = Foreign::new(512).entry(0, 2, 0, &[], &contents("xX")).finish();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        import(&bytes, geometry()).unwrap_err()
    };
    assert!(matches!(with(0, 0), DmLogError::Magic(_)));
    assert_eq!(with(8, 2), DmLogError::Version(2));
    assert_eq!(with(24, 1), DmLogError::SectorSize(513));
    assert_eq!(with(16, 2), DmLogError::Truncated { entry: 1, entries: 2 });
    assert_eq!(with(512, 1), DmLogError::Unaligned { entry: 0, block_size: 1024 });
    assert_eq!(with(512, 6), DmLogError::Outside { entry: 0, sector: 6, count: 2 });
    assert!(matches!(with(519, 255), DmLogError::Outside { .. }));
    assert_eq!(import(&good[..600], geometry()).unwrap_err(), DmLogError::Truncated { entry: 0, entries: 1 });
    assert!(import(&good[..9], geometry()).is_err());
    let mut mark = Foreign::new(512).entry(0, 0, MARK, b"x", &[]).finish();
    mark[512 + 25] = 2;
    assert_eq!(import(&mark, geometry()).unwrap_err(), DmLogError::LongMark { entry: 0, len: 513 });
}

/// A file that is longer than it should be is not read to its end, and one whose header promises more than there is takes
/// no memory for it.
#[test]
fn memory_follows_what_is_there_and_not_what_is_claimed() {
    /// Bytes that must not all be wanted.
    struct Endless(u64);
    impl std::io::Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0 += u64::try_from(into.len()).unwrap();
            assert!(self.0 < 1 << 20, "the log has ended long ago");
            into.fill(7);
            Ok(into.len())
        }
    }
    let good = Foreign::new(512).entry(0, 2, 0, &[], &contents("xX")).finish();
    let mut reader = DmLogReader::new(std::io::Read::chain(&*good, Endless(0)), geometry()).unwrap();
    assert_eq!(reader.entries(), 1);
    assert_eq!(reader.next_entry().unwrap().unwrap().len(), 2);
    assert_eq!(reader.next_entry(), Ok(None));
    assert_eq!(reader.next_entry(), Ok(None), "the end stays the end");

    let vast = Geometry { block_count: 1 << 50, ..geometry() };
    let mut claims = good.clone();
    claims[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    claims[520..528].copy_from_slice(&(1_u64 << 50).to_le_bytes());
    assert_eq!(import(&claims, vast).unwrap_err(), DmLogError::Truncated { entry: 0, entries: u64::MAX });
}

/// A reading error is told from a log that ends early.
#[test]
fn a_medium_that_fails_is_named() {
    struct Bad;
    impl std::io::Read for Bad {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("bad sector"))
        }
    }
    let good = Foreign::new(512).entry(0, 2, 0, &[], &contents("xX")).finish();
    let mut reader = DmLogReader::new(std::io::Read::chain(&good[..700], Bad), geometry()).unwrap();
    assert_eq!(reader.next_entry(), Err(DmLogError::Io("bad sector".into())));
}

/// What the format can say of a log: kinds become data or metadata.
fn round(log: &Log) -> Log {
    import(&export(log, &BTreeMap::new()), geometry()).unwrap().log
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_read_once_is_read_the_same_again(steps in prop::collection::vec(step(), 0..24)) {
        let once = round(&past(&steps).log);
        prop_assert_eq!(round(&once), once);
    }

    /// If all writes were acknowledged, the log means the same at its end.
    #[test]
    fn an_exported_log_leaves_the_same_images(steps in prop::collection::vec(step(), 0..24)) {
        let mut log = past(&steps).log;
        let issued: Vec<RequestNo> = log.events.iter().filter_map(|event| match event {
            Event::Write { request, .. } | Event::Discard { request, .. } => Some(*request),
            _ => None,
        }).collect();
        for request in issued {
            if !log.events.contains(&Event::Ack(request)) {
                log.events.push(Event::Ack(request));
            }
        }
        let read = round(&log);
        for level in [Level::M2, Level::M3] {
            let ours = images_after(&log, log.events.len(), level);
            let theirs = images_after(&read, read.events.len(), level);
            prop_assert_eq!(ours, theirs, "{} of {:#?}", level, log.events);
        }
    }

    #[test]
    fn damaged_logs_never_panic(
        steps in prop::collection::vec(step(), 0..12), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        field in 0_usize..64, cut in any::<prop::sample::Index>(), cuts in any::<bool>(),
    ) {
        let mut bytes = export(&past(&steps).log, &BTreeMap::new());
        let sector = at.index(bytes.len() / 512) * 512;
        bytes[sector + field] = byte;
        if cuts {
            bytes.truncate(cut.index(bytes.len()));
        }
        let mut events = Vec::new();
        let read = DmLogReader::new(&*bytes, geometry()).and_then(|mut reader| {
            while let Some(more) = reader.next_entry()? {
                events.extend(more);
            }
            Ok(())
        });
        let whole = import(&bytes, geometry());
        prop_assert_eq!(read, whole.as_ref().map(drop).map_err(DmLogError::clone));
        prop_assert!(whole.as_ref().is_ok_and(|whole| whole.log.events == events) || whole.is_err());
        match whole {
            // What is accepted can be judged.
            Ok(imported) => {
                for level in Level::ALL {
                    let mut history = fstitch_crashlab::medium::History::new(crate::past::base(), level);
                    imported.log.events.iter().for_each(|event| history.apply(event));
                    prop_assert!(history.cut().states() > 0);
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
