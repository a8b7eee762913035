//! Who claims when, and what is written by whom, on a volume that another machine may use.

use fstitch_core::{ManualClock, MemDevice, Timestamp};

use super::*;
use crate::ext2::layout::checksum::seal_superblock;
use crate::ext2::mkfs::{MkfsFeatures, MkfsOptions, mkfs};

const BLOCK: u32 = 1024;
/// A block that nobody owns.
const AT: u64 = 2000;

fn who(node: &str) -> Who {
    Who { node: node.into(), device: "disk".into() }
}

/// A volume, with sums, whose block was last written by a machine called `other`.
fn volume(number: u32) -> Arc<MemDevice> {
    volume_of(2048, number)
}

fn volume_of(blocks: u64, number: u32) -> Arc<MemDevice> {
    let device = MemDevice::new(BLOCK, blocks);
    let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
    let features = MkfsFeatures { metadata_csum: true, extent: true, ..MkfsFeatures::default() };
    let made = MkfsOptions { block_size: Some(BLOCK), features, ..MkfsOptions::new([7; 16], [8; 16], now) };
    mkfs(&device, &made, &mut |_, _| ()).unwrap();
    let mut image = device.image();
    // With the copy of the second group, if there is one.
    for at in [1024, 8193 * 1024] {
        let Some(raw) = image.get_mut(at..at + 1024) else { continue };
        S_FEATURE_INCOMPAT.put(raw, S_FEATURE_INCOMPAT.get(raw) | incompat::MMP);
        S_MMP_INTERVAL.put(raw, 5);
        S_MMP_BLOCK.put(raw, AT);
        seal_superblock(raw);
    }
    let device = Arc::new(MemDevice::from_image(BLOCK, image));
    tell(&device, number);
    device
}

fn over(device: &Arc<MemDevice>, node: &str) -> Claim {
    let (_, shape) = read_superblock(&**device).unwrap();
    Claim {
        device: Arc::clone(device) as _,
        block_size: 1024,
        at: BlockNo(AT),
        sums: shape.sums,
        who: who(node),
        clock: Arc::new(ManualClock::new()),
        interval: 5,
        check_interval: 10,
        number: AtomicU32::new(1),
        seen: AtomicU64::new(0),
        lost: OnceLock::new(),
        is_released: AtomicBool::new(false),
    }
}

fn number_of(device: &Arc<MemDevice>) -> u32 {
    undamaged(device, "reader").word().unwrap().number
}

fn tell_at(device: &Arc<MemDevice>, number: u32) {
    undamaged(device, "other").tell(number).unwrap();
}

/// As [`over`], of a volume whose superblock may be damaged.
fn undamaged(device: &Arc<MemDevice>, node: &str) -> Claim {
    Claim { device: Arc::clone(device) as _, ..over(&volume(FREE), node) }
}

/// Somebody else says so.
fn tell(device: &Arc<MemDevice>, number: u32) {
    over(device, "other").tell(number).unwrap();
}

fn number(device: &Arc<MemDevice>) -> u32 {
    over(device, "reader").word().unwrap().number
}

fn claim(device: &Arc<MemDevice>, clock: &Arc<ManualClock>, meanwhile: impl FnMut()) -> (Result<Claim>, u64) {
    claim_if(device, clock, false, meanwhile)
}

fn claim_if(
    device: &Arc<MemDevice>,
    clock: &Arc<ManualClock>,
    no_check: bool,
    mut meanwhile: impl FnMut(),
) -> (Result<Claim>, u64) {
    let mut waited = 0;
    let mut wait = |patience: Duration| {
        clock.advance(patience);
        waited += patience.as_secs();
        meanwhile();
        Ok(())
    };
    let around = Around { clock: Arc::clone(clock) as _, random: 41, no_check, wait: &mut wait };
    let claimed = Claim::new(Arc::clone(device) as _, who("here"), around);
    (claimed, waited)
}

fn write(claim: &Claim) -> Result<()> {
    let data = &[7; BLOCK as usize];
    BlockDevice::write(claim, &[BlockWrite { block: BlockNo(AT + 1), kind: BlockKind::Data, data }])
}

fn is_locked(error: &Error, words: &[&str]) {
    assert!(matches!(error, Error::Locked(_)), "{error}");
    words.iter().for_each(|word| assert!(error.to_string().contains(word), "no {word}: {error}"));
}

#[test]
fn what_nobody_uses_is_claimed_said_again_and_released() {
    let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
    let (claimed, waited) = claim(&device, &clock, || ());
    let claimed = claimed.unwrap();
    assert_eq!((number(&device), waited), (43, 21));
    claimed.renew().unwrap();
    assert_eq!(number(&device), 44);
    assert!(over(&device, "").word().unwrap().is_whole);
    write(&claimed).unwrap();
    claimed.release().unwrap();
    assert_eq!(number(&device), FREE);
    claimed.renew().unwrap();
    assert_eq!(number(&device), FREE, "released is released");
    assert!(write(&claimed).is_err(), "and nothing is written any more");
}

#[test]
fn a_crashed_user_is_waited_for_and_a_living_one_is_not_disturbed() {
    let (device, clock) = (volume(1000), Arc::new(ManualClock::new()));
    let (claimed, waited) = claim(&device, &clock, || ());
    assert!(claimed.is_ok() && waited == 42, "{waited} s");
    let (device, mut next) = (volume(1000), 1000);
    let before = device.image();
    let (claimed, _) = claim(&device, &clock, || {
        next += 1;
        tell(&device, next);
    });
    is_locked(&claimed.err().unwrap(), &["in use", "other", "disk"]);
    assert_eq!(number(&device), 1001);
    let mut image = device.image();
    let block = usize::try_from(AT).unwrap() * 1024;
    image[block..block + 1024].copy_from_slice(&before[block..block + 1024]);
    assert!(image == before, "nothing else was written");
}

#[test]
fn of_two_at_the_same_moment_the_later_one_stays() {
    let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
    let (claimed, _) = claim(&device, &clock, || tell(&device, 77));
    is_locked(&claimed.err().unwrap(), &["same moment", "other"]);
    assert_eq!(number(&device), 77);
}

#[test]
fn what_is_being_checked_is_refused_at_once() {
    let (claimed, waited) = claim(&volume(CHECKED), &Arc::new(ManualClock::new()), || ());
    is_locked(&claimed.err().unwrap(), &["checked"]);
    assert_eq!(waited, 0);
}

/// Claimed by who mends, after damage to the superblock, while somebody uses it or nobody does.
fn claim_to_mend(device: &Arc<MemDevice>, mut meanwhile: impl FnMut()) -> Result<Option<Claim>> {
    let clock = Arc::new(ManualClock::new());
    let mut wait = |patience: Duration| {
        clock.advance(patience);
        meanwhile();
        Ok(())
    };
    let around = Around { clock: Arc::clone(&clock) as _, random: 41, no_check: false, wait: &mut wait };
    Claim::to_mend(&(Arc::clone(device) as _), &who("here"), around)
}

fn with_superblock(device: &Arc<MemDevice>, damage: impl FnOnce(&mut [u8])) -> Arc<MemDevice> {
    let mut image = device.image();
    damage(&mut image[1024..2048]);
    Arc::new(MemDevice::from_image(BLOCK, image))
}

/// Damage to a superblock leaves the block that tells who uses the volume where it is.
#[test]
fn who_mends_a_damaged_superblock_claims_the_volume_before() {
    type Damage = fn(&mut [u8]);
    let damages: [(&str, Damage); 4] = [
        ("its sum", |raw| raw[0x3fc] ^= 1),
        ("its revision", |raw| raw[0x4c..0x50].fill(0)),
        ("its blocks", |raw| raw[4] ^= 1),
        ("all of it", |raw| raw.fill(0)),
    ];
    for (what, damage) in damages {
        let device = with_superblock(&volume_of(20_000, FREE), damage);
        assert!(Claim::may_be_told(&*device).unwrap(), "{what}");
        let claim = claim_to_mend(&device, || ()).unwrap().expect(what);
        assert_eq!(number_of(&device), 43, "{what}");
        claim.release().unwrap();
        assert_eq!(number_of(&device), FREE, "{what}");
        let (device, mut next) = (with_superblock(&volume_of(20_000, 1000), damage), 1000);
        let claimed = claim_to_mend(&device, || {
            next += 1;
            tell_at(&device, next);
        });
        is_locked(&claimed.err().expect(what), &["in use", "other"]);
    }
}

/// Nobody is told where the block is none, and what was one is not overwritten.
#[test]
fn who_mends_claims_nothing_where_nothing_tells() {
    for number in [0, AT + 1, 1 << 20, 1 << 40] {
        let device = with_superblock(&volume(FREE), |raw| {
            S_MMP_BLOCK.put(raw, number);
            seal_superblock(raw);
        });
        let before = device.image();
        assert!(claim_to_mend(&device, || ()).unwrap().is_none(), "{number}");
        let strict = claim(&device, &Arc::new(ManualClock::new()), || ()).0;
        assert!(matches!(strict, Err(Error::Corrupt(_))), "{number}");
        assert!(device.image() == before, "{number}");
    }
    let device = volume(1000);
    let claimed = claim_to_mend(&device, || {
        let data = &[0; BLOCK as usize];
        device.write(&[BlockWrite { block: BlockNo(AT), kind: BlockKind::Data, data }]).unwrap();
    });
    is_locked(&claimed.err().unwrap(), &["meanwhile"]);
}

/// Who says that the check has crashed is believed when it does not tell of itself.
#[test]
fn what_was_left_by_a_check_is_taken_over_if_somebody_says_so() {
    let (device, clock) = (volume(CHECKED), Arc::new(ManualClock::new()));
    let (claimed, waited) = claim_if(&device, &clock, true, || ());
    assert!(waited == 42, "{waited} s");
    claimed.unwrap().release().unwrap();
    assert_eq!(number(&device), FREE);
    let device = volume(CHECKED);
    let (claimed, _) = claim_if(&device, &clock, true, || {
        let checker = over(&device, "other");
        let later = Arc::new(ManualClock::new());
        later.advance(Duration::from_secs(5));
        Claim { clock: later, ..checker }.tell(CHECKED).unwrap();
    });
    is_locked(&claimed.err().unwrap(), &["in use", "other"]);
    assert_eq!(number(&device), CHECKED);
}

/// Who comes back from a sleep of which he knows nothing, or too late from a write, finds whose the block is.
#[test]
fn the_block_is_never_written_unseen() {
    let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
    let claimed = claim(&device, &clock, || ()).0.unwrap();
    tell(&device, 9999);
    let before = device.image();
    is_locked(&claimed.renew().unwrap_err(), &["taken over", "other"]);
    assert!(claimed.release().is_ok() && device.image() == before);
}

/// A number that could not be written is not ours yet, and is tried again.
#[test]
fn a_number_counts_when_it_was_written() {
    let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
    let claimed = claim(&device, &clock, || ()).0.unwrap();
    let failing = Claim {
        device: Arc::new(Unwritable(Arc::clone(&device))),
        number: AtomicU32::new(claimed.number.load(Ordering::Relaxed)),
        ..over(&device, "here")
    };
    for _ in 0..4 {
        assert!(matches!(failing.renew(), Err(Error::Io { .. })));
        clock.advance(Duration::from_secs(5));
    }
    assert!(failing.look().is_ok(), "the block is ours all the time");
}

/// A device that takes no writes.
struct Unwritable(Arc<MemDevice>);

impl BlockDevice for Unwritable {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.0.read(reads)
    }

    fn write(&self, _writes: &[BlockWrite<'_>]) -> Result<()> {
        Err(Error::io(IoOp::Write, BlockNo(0), std::io::Error::other("it takes none")))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

#[test]
fn an_interval_of_a_torn_block_keeps_nobody_waiting() {
    let (device, clock) = (volume(1000), Arc::new(ManualClock::new()));
    let mut image = device.image();
    let block = usize::try_from(AT).unwrap() * 1024;
    image[block + 112..block + 114].fill(0xff);
    let torn = Arc::new(MemDevice::from_image(BLOCK, image));
    let (claimed, waited) = claim(&torn, &clock, || ());
    assert!(claimed.is_ok() && waited == 42, "{waited} s");
}

/// Checkers see a volume in the smallest blocks, arrays in those of their disks.
#[test]
fn the_device_may_have_other_blocks() {
    for unit in [512, 4096] {
        let device = Arc::new(MemDevice::from_image(unit, volume(FREE).image()));
        let before = device.image();
        let claimed = claim(&device, &Arc::new(ManualClock::new()), || ()).0.unwrap();
        assert!(device.image() != before);
        claimed.renew().unwrap();
        claimed.release().unwrap();
        let block = usize::try_from(AT).unwrap() * 1024;
        let mut after = device.image();
        assert_eq!(after[block + 4..block + 8], FREE.to_le_bytes());
        after[block..block + 1024].copy_from_slice(&before[block..block + 1024]);
        assert!(after == before, "blocks of {unit} bytes: nothing else was written");
    }
}

#[test]
fn a_volume_that_tells_nobody_is_not_claimed() {
    let mut image = volume(FREE).image();
    let raw = &mut image[1024..2048];
    S_FEATURE_INCOMPAT.put(raw, S_FEATURE_INCOMPAT.get(raw) & !incompat::MMP);
    seal_superblock(raw);
    let device = Arc::new(MemDevice::from_image(BLOCK, image));
    assert!(matches!(claim(&device, &Arc::new(ManualClock::new()), || ()).0, Err(Error::Unsupported(_))));
}

#[test]
fn who_slept_too_long_looks_before_he_writes() {
    let (device, clock) = (volume(FREE), Arc::new(ManualClock::new()));
    let claimed = claim(&device, &clock, || ()).0.unwrap();
    clock.advance(Duration::from_secs(60));
    write(&claimed).unwrap();
    clock.advance(Duration::from_secs(60));
    tell(&device, 9999);
    let before = device.image();
    assert!(write(&claimed).unwrap_err().to_string().contains("taken over by disk on other"));
    is_locked(&claimed.renew().unwrap_err(), &["taken over"]);
    claimed.release().unwrap();
    // And never again, though the other one has gone.
    tell(&device, FREE);
    assert!(write(&claimed).is_err() && claimed.intact().is_err());
    tell(&device, 9999);
    assert!(device.image() == before);
}

#[test]
fn a_torn_block_is_waited_for() {
    let (device, clock) = (volume(1000), Arc::new(ManualClock::new()));
    let mut image = device.image();
    image[usize::try_from(AT).unwrap() * 1024 + 1020] ^= 1;
    let torn = Arc::new(MemDevice::from_image(BLOCK, image.clone()));
    let (claimed, waited) = claim(&torn, &clock, || ());
    assert!(claimed.is_ok() && waited == 42);
    image[usize::try_from(AT).unwrap() * 1024] ^= 1;
    let none = Arc::new(MemDevice::from_image(BLOCK, image));
    assert!(matches!(claim(&none, &clock, || ()).0, Err(Error::Corrupt(_))));
}
