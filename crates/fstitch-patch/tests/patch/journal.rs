//! A replay that brings home what was never committed, forgets what was, or trusts what damage says would ruin the
//! volume that the journal protects.

use std::collections::BTreeMap;
use std::sync::Mutex;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Errno, Geometry, MemDevice, Result,
    Seed, Timestamp,
};
use fstitch_patch::journal::blocks::{Shape, escape};
use fstitch_patch::journal::checksum::{START, crc32};
use fstitch_patch::journal::format::{self, MAGIC, SUPERBLOCK_SIZE, Sequence, Superblock};
use fstitch_patch::journal::{Area, Home, Log, Why, replay};

const BLOCK: usize = 1024;
const BLOCKS: u64 = 256;
/// The journal is blocks 10..60 and 100..150 of the device, in the other order.
const RUNS: [(BlockNo, u64); 2] = [(BlockNo(100), 50), (BlockNo(10), 50)];
const HOME: Home = Home { block_count: BLOCKS, shares_device: true };

fn area() -> Area {
    Area::of_file(RUNS).unwrap()
}

/// Writes transactions as a file system would, with nothing but the encoders.
struct Writer {
    device: MemDevice,
    area: Area,
    superblock: Superblock,
    shape: Shape,
    at: u32,
    sequence: Sequence,
}

/// What a transaction changes, and what it revokes.
#[derive(Clone, Default)]
struct Transaction {
    changes: Vec<(u64, u8)>,
    revokes: Vec<u64>,
}

/// A block filled with a byte; 0xc0 stands for one that looks like the journal's own.
fn contents(fill: u8) -> Vec<u8> {
    let mut block = vec![fill; BLOCK];
    if fill == 0xc0 {
        block[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }
    block
}

impl Writer {
    fn new(incompat: u32, compat: u32, sequence: u32, start: u32) -> Self {
        let mut superblock = Superblock::new(1024, 100, 1, [5; 16]);
        superblock.features.incompat = incompat;
        superblock.features.compat = compat;
        superblock.sequence = Sequence(sequence);
        superblock.start = start;
        let device = MemDevice::new(1024, BLOCKS);
        let area = area();
        let mut raw = vec![0; SUPERBLOCK_SIZE];
        superblock.encode_into(&mut raw);
        put(&device, area.superblock().unwrap(), &raw);
        let shape = Shape::new(&superblock);
        Self { device, area, shape, at: start, sequence: superblock.sequence, superblock }
    }

    fn append(&mut self, block: &[u8]) {
        put(&self.device, self.area.map(u64::from(self.at)).unwrap(), block);
        self.at = self.superblock.advance(self.at, 1);
    }

    /// Everything of a transaction but its commit block; returns the checksum over it.
    fn open(&mut self, transaction: &Transaction) -> u32 {
        let mut sum = START;
        let mut block = vec![0; BLOCK];
        for part in transaction.changes.chunks(self.shape.tags_max()) {
            let mut tags = Vec::new();
            let mut copies = Vec::new();
            for &(home, fill) in part {
                let mut copy = contents(fill);
                let escaped = escape(&mut copy);
                tags.push(self.shape.tag_for(home, escaped, self.sequence, &copy));
                copies.push(copy);
            }
            self.shape.put_descriptor(&mut block, self.sequence, &tags);
            sum = crc32(sum, &block);
            self.append(&block);
            for copy in copies {
                sum = crc32(sum, &copy);
                self.append(&copy);
            }
        }
        if !transaction.revokes.is_empty() {
            self.shape.put_revoke(&mut block, self.sequence, &transaction.revokes);
            self.append(&block);
        }
        sum
    }

    fn commit(&mut self, transaction: &Transaction) {
        let sum = self.open(transaction);
        let mut block = vec![0; BLOCK];
        self.shape.put_commit(&mut block, self.sequence, Timestamp { secs: 7, nanos: 0 }, sum);
        self.append(&block);
        self.sequence = self.sequence.next();
    }
}

fn put(device: &dyn BlockDevice, block: BlockNo, data: &[u8]) {
    device.write(&[BlockWrite { block, kind: BlockKind::Data, data }]).unwrap();
}

fn get(device: &dyn BlockDevice, block: BlockNo) -> Vec<u8> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block, kind: BlockKind::Data, data: &mut data }]).unwrap();
    data
}

fn change(changes: &[(u64, u8)]) -> Transaction {
    Transaction { changes: changes.to_vec(), revokes: Vec::new() }
}

/// Replays, and says what the blocks are at home that are not zero.
fn replayed(device: &MemDevice) -> (fstitch_patch::journal::Replayed, BTreeMap<u64, Vec<u8>>) {
    let area = area();
    let mut log = Log::open(device, &area, HOME).unwrap();
    let done = replay(&mut log, device, &|_, _| BlockKind::Data, &mut |_| {}).unwrap();
    assert!(Log::open(device, &area, HOME).unwrap().is_empty());
    (done, homes(device))
}

fn homes(device: &MemDevice) -> BTreeMap<u64, Vec<u8>> {
    let area = area();
    (0..BLOCKS)
        .filter(|&no| !area.contains(BlockNo(no)))
        .map(|no| (no, get(device, BlockNo(no))))
        .filter(|(_, data)| data.iter().any(|&byte| byte != 0))
        .collect()
}

#[test]
fn every_format_of_journal_is_replayed() {
    let formats = [
        (0, 0),
        (format::INCOMPAT_REVOKE, 0),
        (format::INCOMPAT_64BIT, 0),
        (0, format::COMPAT_CHECKSUM),
        (format::INCOMPAT_ASYNC_COMMIT, format::COMPAT_CHECKSUM),
        (format::INCOMPAT_CSUM_V2, 0),
        (format::INCOMPAT_CSUM_V2 | format::INCOMPAT_64BIT, 0),
        (format::INCOMPAT_CSUM_V3, 0),
        (format::INCOMPAT_CSUM_V3 | format::INCOMPAT_64BIT, 0),
    ];
    for (incompat, compat) in formats {
        let mut writer = Writer::new(incompat, compat, 5, 1);
        writer.commit(&change(&[(200, 1), (201, 0xc0), (5, 2)]));
        writer.commit(&change(&[(200, 3)]));
        writer.open(&change(&[(201, 4), (202, 4)]));
        let (done, homes) = replayed(&writer.device);
        assert_eq!(
            (done.written, done.scan.transactions, done.scan.copies),
            (3, 2, 4),
            "{incompat} {compat}"
        );
        assert!(done.scan.end.is_torn && !done.scan.end.why.is_damage(), "{:?}", done.scan.end);
        let expected = BTreeMap::from([(200, contents(3)), (201, contents(0xc0)), (5, contents(2))]);
        assert_eq!(homes, expected);
    }
}

#[test]
fn the_log_goes_around_and_so_do_its_numbers() {
    // The first lap leaves blocks of old transactions behind, over which the second one goes.
    let mut writer = Writer::new(0, 0, u32::MAX - 2, 90);
    for round in 0..9_u8 {
        writer.commit(&change(&[(200, round), (201 + u64::from(round), round + 1)]));
    }
    let (done, homes) = replayed(&writer.device);
    assert_eq!(done.scan.transactions, 9);
    assert_eq!(homes[&200], contents(8));
    assert_eq!(homes.len(), 10);
    let log_area = area();
    let log = Log::open(&writer.device, &log_area, HOME).unwrap();
    assert_eq!(log.superblock().sequence, Sequence(7), "the missing one is skipped");
}

#[test]
fn a_transaction_of_many_descriptors_is_one() {
    let changes: Vec<(u64, u8)> = (160..240).map(|home| (home, 9)).collect();
    let mut superblock = Superblock::new(1024, 100, 1, [0; 16]);
    superblock.features.incompat = format::INCOMPAT_CSUM_V3;
    assert!(Shape::new(&superblock).tags_max() < changes.len());
    let mut writer = Writer::new(format::INCOMPAT_CSUM_V3, 0, 1, 50);
    writer.commit(&change(&changes));
    assert_eq!(replayed(&writer.device).1.len(), 80);
}

#[test]
fn a_revoked_copy_is_not_replayed_and_a_newer_one_is() {
    let revoke = |revokes: &[u64], changes: &[(u64, u8)]| Transaction {
        changes: changes.to_vec(),
        revokes: revokes.to_vec(),
    };
    let mut writer = Writer::new(format::INCOMPAT_REVOKE, 0, 1, 1);
    writer.commit(&change(&[(200, 1), (201, 1), (202, 1)]));
    // 201 has a copy in the very transaction that revokes it: cancelled too.
    writer.commit(&revoke(&[200, 201, 202, 250], &[(201, 2), (203, 2)]));
    writer.commit(&change(&[(202, 3)]));
    // A revocation that was not committed cancels nothing.
    writer.open(&revoke(&[203], &[(204, 4)]));
    let (done, homes) = replayed(&writer.device);
    assert_eq!((done.revoked, done.written, done.scan.revokes), (2, 2, 4));
    assert_eq!(homes, BTreeMap::from([(202, contents(3)), (203, contents(2))]));
}

#[test]
fn damage_ends_the_log_before_its_transaction() {
    type Case = (u32, fn(&mut Writer), fn(&Why) -> bool);
    let cases: [Case; 5] = [
        (0, |w| w.commit(&change(&[(201, 2), (BLOCKS, 2)])), |why| *why == Why::Home(BLOCKS)),
        (0, |w| w.commit(&change(&[(201, 2), (12, 2)])), |why| *why == Why::Home(12)),
        (0, |w| damaged_block(w, &|block| block[7] = 9), |why| *why == Why::Type(9)),
        (
            format::INCOMPAT_CSUM_V3,
            |w| damaged_block(w, &|b| b[900] ^= 1),
            |why| matches!(why, Why::Checksum(_)),
        ),
        (format::INCOMPAT_CSUM_V2, damaged_copy, |why| matches!(why, Why::Checksum(_))),
    ];
    for (number, (incompat, damage, expected)) in cases.into_iter().enumerate() {
        let mut writer = Writer::new(incompat, 0, 1, 1);
        writer.commit(&change(&[(200, 1)]));
        damage(&mut writer);
        writer.commit(&change(&[(202, 3)]));
        let (done, homes) = replayed(&writer.device);
        assert!(expected(&done.scan.end.why), "case {number}: {}", done.scan.end);
        assert!(done.scan.end.why.is_damage());
        assert_eq!(homes, BTreeMap::from([(200, contents(1))]), "case {number}");
    }
}

/// A power cut leaves halves of what was on its way: nothing of it was promised, and nobody has to be told of damage.
#[test]
fn a_transaction_that_never_ended_is_torn_whatever_of_it_arrived() {
    for incompat in [format::INCOMPAT_CSUM_V2, format::INCOMPAT_CSUM_V3 | format::INCOMPAT_64BIT] {
        // The descriptor, two copies, revokes, and the commit block, which did not arrive as a whole either.
        for torn in 0..5_u32 {
            let mut writer = Writer::new(incompat | format::INCOMPAT_REVOKE, 0, 1, 1);
            writer.commit(&change(&[(200, 1)]));
            let (area, first) = (writer.area.clone(), writer.at);
            let last = Transaction { changes: vec![(201, 2), (202, 2)], revokes: vec![250] };
            match torn {
                4 => writer.commit(&last),
                _ => _ = writer.open(&last),
            }
            let at = area.map(u64::from(first + torn)).unwrap();
            let mut block = get(&writer.device, at);
            block[BLOCK - 100] ^= 1;
            put(&writer.device, at, &block);
            let (done, homes) = replayed(&writer.device);
            let end = done.scan.end;
            assert!(matches!(end.why, Why::Torn(_)) && !end.why.is_damage(), "{incompat} {torn}: {end}");
            assert!(end.is_torn);
            assert_eq!(homes, BTreeMap::from([(200, contents(1))]), "{incompat} {torn}");
        }
    }
}

/// Commits a transaction whose first block is then changed.
fn damaged_block(writer: &mut Writer, damage: &dyn Fn(&mut [u8])) {
    let at = writer.area.map(u64::from(writer.at)).unwrap();
    writer.commit(&change(&[(201, 2)]));
    let mut block = get(&writer.device, at);
    damage(&mut block);
    put(&writer.device, at, &block);
}

fn damaged_copy(writer: &mut Writer) {
    let at = writer.area.map(u64::from(writer.at) + 1).unwrap();
    writer.commit(&change(&[(201, 2)]));
    put(&writer.device, at, &contents(77));
}

#[test]
fn a_log_that_swallows_itself_ends() {
    // A descriptor whose copies reach around to the descriptor itself.
    let mut writer = Writer::new(0, 0, 1, 1);
    let all: Vec<(u64, u8)> = (150..248).map(|home| (home, 1)).collect();
    writer.open(&change(&all));
    let (done, homes) = replayed(&writer.device);
    assert_eq!(done.scan.end.why, Why::Around);
    assert!(homes.is_empty());
}

/// Counts writes and fails all after some number of them, as a machine that lost its power would.
struct Dying {
    device: MemDevice,
    left: Mutex<u64>,
}

impl BlockDevice for Dying {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.device.read(reads)
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        for write in writes {
            let mut left = self.left.lock().unwrap();
            if *left == 0 {
                return Err(Errno::IO.into());
            }
            *left -= 1;
            self.device.write(std::slice::from_ref(write))?;
        }
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_replay_cut_after_any_write_is_finished_by_the_next() {
    let mut writer = Writer::new(format::INCOMPAT_REVOKE, 0, 9, 80);
    for round in 0..6_u8 {
        let revokes = if round == 4 { vec![203] } else { vec![] };
        let changes = (0..5).map(|i| (200 + u64::from(round) + i, round + 1)).collect();
        writer.commit(&Transaction { changes, revokes });
    }
    let before = writer.device.image();
    let (done, expected) = replayed(&writer.device);
    for cut in 0..=done.written {
        let device = Dying { device: MemDevice::from_image(1024, before.clone()), left: Mutex::new(cut) };
        let area = area();
        let mut log = Log::open(&device, &area, HOME).unwrap();
        assert!(replay(&mut log, &device, &|_, _| BlockKind::Data, &mut |_| {}).is_err());
        let (again, homes) = replayed(&device.device);
        assert_eq!(again, done, "the log was not touched before the end");
        assert_eq!(homes, expected);
    }
}

#[test]
fn blocks_change_together_or_not_at_all() {
    for incompat in [0, format::INCOMPAT_CSUM_V3] {
        let writer = Writer::new(incompat, 0, 3, 0);
        let before = writer.device.image();
        let area = area();
        let log = Log::open(&writer.device, &area, HOME).unwrap();
        let count = u64::try_from(log.apply_max()).unwrap();
        let home = |i: u64| if i < 5 { 1 + i } else { 150 + i };
        let blocks: Vec<(BlockNo, BlockBuf)> =
            (0..count).map(|i| (BlockNo(home(i)), BlockBuf::copy_of(&contents(0xc0)))).collect();
        drop(log);
        for cut in 0.. {
            let device = Dying { device: MemDevice::from_image(1024, before.clone()), left: Mutex::new(cut) };
            let mut log = Log::open(&device, &area, HOME).unwrap();
            let applied = log.apply(&blocks, Timestamp { secs: 1, nanos: 0 });
            let (_, homes) = replayed(&device.device);
            if applied.is_ok() {
                assert_eq!(homes.len(), blocks.len());
                assert!(homes.values().all(|data| *data == contents(0xc0)));
                break;
            }
            assert!(homes.is_empty(), "cut after {cut} writes");
        }
    }
}

#[test]
fn what_is_behind_damage_never_comes_back() {
    let mut writer = Writer::new(0, 0, 1, 1);
    damaged_block(&mut writer, &|block| block[7] = 9);
    writer.commit(&change(&[(202, 3)]));
    writer.commit(&change(&[(203, 3)]));
    let (done, homes_now) = replayed(&writer.device);
    assert!(done.scan.end.why.is_damage() && homes_now.is_empty());
    // A new transaction ends exactly where the third one starts, and must not be continued by it.
    let area = area();
    let mut log = Log::open(&writer.device, &area, HOME).unwrap();
    let data = BlockBuf::copy_of(&contents(5));
    let blocks: Vec<(BlockNo, BlockBuf)> = (210..214).map(|no| (BlockNo(no), data.clone())).collect();
    log.apply(&blocks, Timestamp { secs: 1, nanos: 0 }).unwrap();
    let done = replay(&mut log, &writer.device, &|_, _| BlockKind::Data, &mut |_| {}).unwrap();
    assert_eq!((done.scan.transactions, done.scan.end.at), (1, 7));
    assert!(!homes(&writer.device).contains_key(&203));
}

#[test]
fn contents_that_look_like_a_transaction_are_none() {
    let writer = Writer::new(0, 0, 3, 0);
    let area = area();
    let mut log = Log::open(&writer.device, &area, HOME).unwrap();
    // A file that holds a whole transaction, numbered as the one after the next.
    let mut forged = [contents(1), contents(1), vec![0; BLOCK], contents(0xee), vec![0; BLOCK]];
    let tag = writer.shape.tag_for(240, false, Sequence(6), &forged[3]);
    writer.shape.put_descriptor(&mut forged[2], Sequence(6), &[tag]);
    writer.shape.put_commit(&mut forged[4], Sequence(6), Timestamp { secs: 1, nanos: 0 }, 0);
    let blocks: Vec<(BlockNo, BlockBuf)> =
        forged.iter().zip(200..).map(|(data, no)| (BlockNo(no), BlockBuf::copy_of(data))).collect();
    for blocks in [&blocks[..], &blocks[..1]] {
        log.apply(blocks, Timestamp { secs: 1, nanos: 0 }).unwrap();
        let done = replay(&mut log, &writer.device, &|_, _| BlockKind::Data, &mut |_| {}).unwrap();
        assert_eq!(done.scan.transactions, 1, "{}", done.scan.end);
    }
    // The second transaction ended where the first one's third copy was.
    let homes = homes(&writer.device);
    assert!(homes.contains_key(&202) && !homes.contains_key(&240));
}

#[test]
fn no_damage_makes_the_reader_panic_loop_or_leave_its_bounds() {
    let mut seed = Seed::new(11);
    for round in 0..4_000_u64 {
        let incompat = [0, 1, 3, format::INCOMPAT_CSUM_V2, format::INCOMPAT_CSUM_V3]
            [usize::try_from(round % 5).unwrap()];
        let mut writer = Writer::new(incompat, 0, 1, 95);
        for fill in 1..4 {
            let revokes = vec![200 + u64::from(fill)];
            writer.commit(&Transaction { changes: vec![(200, fill), (201, fill), (202, fill)], revokes });
        }
        let area = area();
        for _ in 0..=seed.below(4) {
            // The superblock, or a block of the log, mostly in the bytes that mean something.
            let no = if seed.below(4) == 0 {
                0
            } else {
                [95, 96, 99, 1, 2, 5, 8][usize::try_from(seed.below(7)).unwrap()]
            };
            let at = area.map(no).unwrap();
            let mut block = get(&writer.device, at);
            let byte = if seed.below(3) == 0 { seed.below(1024) } else { seed.below(64) };
            block[usize::try_from(byte).unwrap()] = u8::try_from(seed.below(256)).unwrap();
            put(&writer.device, at, &block);
        }
        let Ok(mut log) = Log::open(&writer.device, &area, HOME) else { continue };
        if let Ok(done) = replay(&mut log, &writer.device, &|_, _| BlockKind::Data, &mut |_| {}) {
            assert!(done.scan.blocks <= 99 && log.is_empty());
            assert!(
                replay(&mut log, &writer.device, &|_, _| BlockKind::Data, &mut |_| {}).unwrap().written == 0
            );
        }
    }
}
