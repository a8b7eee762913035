//! Each defect does what its name says, to the requests that the plan chooses, and plans are read back as printed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Errno, Error, IoOp, MemDevice, Result,
};
use fstitch_crashlab::{BadPlan, Defect, Fault, FaultDevice, FaultPlan, Recorder, Times};
use proptest::prelude::*;

const BLOCK: usize = 2048;
const BLOCKS: u64 = 16;

type Device = FaultDevice<Recorder<MemDevice>>;

/// A device whose block n holds the byte n.
fn device(plan: &str) -> Device {
    let bytes = (0..16_u8).flat_map(|no| [no; BLOCK]).collect();
    FaultDevice::new(Recorder::new(MemDevice::from_image(2048, bytes)), plan.parse().unwrap())
}

fn write(device: &Device, blocks: &[u64], kind: BlockKind, byte: u8) -> Result<()> {
    let data = [byte; BLOCK];
    let writes: Vec<_> =
        blocks.iter().map(|&no| BlockWrite { block: BlockNo(no), kind, data: &data }).collect();
    device.write(&writes)
}

fn read(device: &Device, block: u64) -> Result<Vec<u8>> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block: BlockNo(block), kind: BlockKind::Data, data: &mut data }])?;
    Ok(data)
}

/// What the medium holds.
fn medium(device: &Device, block: usize) -> Vec<u8> {
    device.device().device().image()[block * BLOCK..][..BLOCK].to_vec()
}

fn assert_failed(result: Result<impl std::fmt::Debug>, op: IoOp, block: u64) {
    let error = result.unwrap_err();
    assert_eq!(error.errno(), Errno::IO);
    assert!(matches!(error, Error::Io { op: o, block: b, .. } if o == op && b.get() == block), "{error}");
}

#[test]
fn an_error_fails_its_block_and_spares_the_rest_of_the_batch() {
    let device = device("error write blocks=4..6");
    assert_failed(write(&device, &[3, 4, 5, 6], BlockKind::Data, 99), IoOp::Write, 4);
    let bytes: Vec<u8> = (3..7).map(|block| medium(&device, block)[0]).collect();
    assert_eq!(bytes, [99, 4, 99, 99], "once is once");
    write(&device, &[4], BlockKind::Data, 98).unwrap();
    assert_eq!(device.injected()["error"], 1);
    assert_eq!(device.requests().writes, 5);
}

#[test]
fn sticky_faults_strike_for_ever_and_transient_ones_k_times() {
    let sticky = device("error read blocks=7 times=all");
    for _ in 0..5 {
        assert_failed(read(&sticky, 7), IoOp::Read, 7);
        read(&sticky, 8).unwrap();
    }
    let transient = device("error read nth=2 every=3 times=2");
    let outcomes: Vec<bool> = (0..12).map(|_| read(&transient, 1).is_ok()).collect();
    let failed: Vec<usize> = (0..12).filter(|&n| !outcomes[n]).collect();
    assert_eq!(failed, [1, 4]);
}

#[test]
fn kinds_and_operations_choose() {
    let device = device("lost write kind=Inode times=all; error flush nth=2; error discard");
    write(&device, &[1], BlockKind::Data, 50).unwrap();
    write(&device, &[2], BlockKind::Inode, 50).unwrap();
    assert_eq!((medium(&device, 1)[0], medium(&device, 2)[0]), (50, 2));
    device.flush().unwrap();
    assert_failed(device.flush(), IoOp::Flush, 0);
    device.flush().unwrap();
    assert_failed(device.discard(BlockNo(3), 2), IoOp::Discard, 3);
    device.discard(BlockNo(3), 2).unwrap();
    assert_eq!(device.injected().into_iter().collect::<Vec<_>>(), [("error", 2), ("lost", 1)]);
}

#[test]
fn a_torn_write_leaves_old_and_new_sectors() {
    let mut mixtures = std::collections::BTreeSet::new();
    for seed in 0..400 {
        let device = device(&format!("seed={seed}; torn"));
        write(&device, &[9], BlockKind::Data, 77).unwrap();
        let sectors: Vec<u8> = medium(&device, 9).chunks(512).map(|sector| sector[0]).collect();
        assert!(medium(&device, 9).chunks(512).all(|s| s.iter().all(|b| *b == s[0])), "sectors are whole");
        assert!(sectors.contains(&9) && sectors.contains(&77), "{sectors:?}");
        mixtures.insert(sectors);
    }
    assert_eq!(mixtures.len(), 14, "every mixture comes up");
    // A block of one sector is torn, too.
    let small = FaultDevice::new(MemDevice::new(512, 4), "torn".parse().unwrap());
    let data = [7; 512];
    small.write(&[BlockWrite { block: BlockNo(0), kind: BlockKind::Data, data: &data }]).unwrap();
    let torn = small.device().image();
    assert!(torn[..512].contains(&0) && torn[..512].contains(&7));
}

#[test]
fn a_misdirected_write_lands_elsewhere_and_a_misdirected_read_comes_from_there() {
    for seed in 0..50 {
        let device = device(&format!("seed={seed}; misdirected write; misdirected read"));
        write(&device, &[5], BlockKind::Data, 200).unwrap();
        let hit: Vec<usize> = (0..16).filter(|&no| medium(&device, no)[0] == 200).collect();
        assert!(hit.len() == 1 && hit[0] != 5, "{hit:?}");
        assert_eq!(medium(&device, 5), [5; BLOCK]);
        assert_ne!(read(&device, 5).unwrap()[0], 5);
        assert_eq!(read(&device, 5).unwrap()[0], 5);
    }
}

#[test]
fn corruption_flips_bits() {
    let device = device("seed=3; corrupted=1 write; corrupted=5 read times=2");
    write(&device, &[5], BlockKind::Data, 0).unwrap();
    let ones = |data: &[u8]| data.iter().map(|byte| byte.count_ones()).sum::<u32>();
    assert_eq!(ones(&medium(&device, 5)), 1);
    let flips =
        |data: Vec<u8>| ones(&data.iter().zip(medium(&device, 5)).map(|(a, b)| a ^ b).collect::<Vec<u8>>());
    assert!((1..=5).contains(&flips(read(&device, 5).unwrap())));
    assert!((1..=5).contains(&flips(read(&device, 5).unwrap())));
    assert_eq!(flips(read(&device, 5).unwrap()), 0);
}

#[test]
fn a_stale_read_returns_the_version_before() {
    let device = device("stale nth=2 times=all");
    write(&device, &[5], BlockKind::Data, 100).unwrap();
    write(&device, &[5], BlockKind::Data, 101).unwrap();
    assert_eq!(read(&device, 5).unwrap()[0], 101);
    assert_eq!(read(&device, 5).unwrap()[0], 100);
    assert_eq!(read(&device, 6).unwrap()[0], 6, "a block that was not written has one version");
}

#[test]
fn slowness_passes_time_and_does_the_work() {
    let waited = Arc::new(Mutex::new(Duration::ZERO));
    let sum = Arc::clone(&waited);
    let plan: FaultPlan = "slow=30 write times=2; slow=5 flush; lost write nth=2".parse().unwrap();
    let delay = Arc::new(move |time| *sum.lock().unwrap() += time);
    let device = FaultDevice::with_delay(MemDevice::new(2048, BLOCKS), plan, delay);
    let data = [1; BLOCK];
    for block in 0..3 {
        device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data: &data }]).unwrap();
    }
    device.flush().unwrap();
    assert_eq!(*waited.lock().unwrap(), Duration::from_millis(65));
    let image = device.device().image();
    assert_eq!([0, 1, 2].map(|block| image[block * BLOCK]), [1, 0, 1], "slow and lost");
}

#[test]
fn a_dead_device_stays_dead() {
    let device = device("dead write nth=2");
    read(&device, 0).unwrap();
    assert_failed(write(&device, &[1, 2, 3], BlockKind::Data, 9), IoOp::Write, 2);
    assert_failed(read(&device, 0), IoOp::Read, 0);
    assert_failed(device.flush(), IoOp::Flush, 0);
    assert_failed(device.discard(BlockNo(1), 1), IoOp::Discard, 1);
    assert_eq!([2, 3].map(|block| medium(&device, block)[0]), [2, 3]);
    assert!(device.injected()["dead"] >= 4);
}

#[test]
fn a_lying_flush_reaches_nobody() {
    let device = device("lying nth=2");
    device.flush().unwrap();
    let log = device.device().take();
    assert_eq!(log.events.len(), 2);
    device.flush().unwrap();
    assert!(device.device().take().events.is_empty());
}

#[test]
fn requests_outside_the_device_are_refused_whatever_the_plan() {
    for plan in ["torn times=all", "lost times=all", "misdirected times=all", "corrupted times=all"] {
        let device = device(plan);
        write(&device, &[BLOCKS], BlockKind::Data, 1).unwrap_err();
        write(&device, &[u64::MAX], BlockKind::Data, 1).unwrap_err();
        read(&device, u64::MAX).unwrap_err();
        let short = BlockWrite { block: BlockNo(0), kind: BlockKind::Data, data: &[1; 7] };
        device.write(&[short]).unwrap_err();
    }
}

#[test]
fn bad_plans_are_refused_by_the_word() {
    for (text, word) in [
        ("explode", "explode"),
        ("error sometimes", "sometimes"),
        ("torn flush", "torn flush"),
        ("lost blocks=5..5", "blocks=5..5"),
        ("lost nth=0", "nth=0"),
        ("lost kind=Mystery", "kind=Mystery"),
        ("lost=3", "lost=3"),
        ("slow=x", "slow=x"),
        ("seed=-1", "seed=-1"),
        ("corrupted=99999999999", "corrupted=99999999999"),
        ("error color=red", "color=red"),
    ] {
        let error: BadPlan = text.parse::<FaultPlan>().unwrap_err();
        assert!(error.to_string().contains(&format!("`{word}`")), "{text}: {error}");
    }
    assert_eq!("".parse::<FaultPlan>().unwrap(), FaultPlan::default());
}

fn defect() -> impl Strategy<Value = Defect> {
    prop_oneof![
        Just(Defect::Error),
        Just(Defect::Torn),
        Just(Defect::Lost),
        Just(Defect::Misdirected),
        Just(Defect::Stale),
        Just(Defect::Dead),
        Just(Defect::Lying),
        any::<u32>().prop_map(|bits| Defect::Corrupted { bits }),
        any::<u64>().prop_map(|ms| Defect::Slow { ms }),
    ]
}

prop_compose! {
    fn fault()(
        defect in defect(), has_op in any::<bool>(), which in any::<prop::sample::Index>(),
        blocks in prop::option::of((0_u64..100, 1_u64..100)),
        kind in prop::option::of(prop::sample::select(vec![BlockKind::Inode, BlockKind::JournalCommit])),
        nth in 1_u64.., every in 1_u64.., times in prop::option::of(any::<u64>()),
    ) -> Fault {
        let op = has_op.then(|| *which.get(defect.operations()));
        let blocks = blocks.map(|(start, count)| start..start + count);
        let times = times.map_or(Times::Sticky, Times::Transient);
        Fault { defect, op, blocks, kind, nth, every, times }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_are_read_back_as_printed(seed in any::<u64>(), faults in prop::collection::vec(fault(), 0..5)) {
        let plan = FaultPlan { seed, faults };
        prop_assert_eq!(plan.to_string().parse::<FaultPlan>().unwrap(), plan);
    }

    #[test]
    fn no_text_panics(text in "(seed=|torn|slow=|;| |blocks=|\\.\\.|[0-9]|times=all|é){0,12}") {
        drop(text.parse::<FaultPlan>());
    }
}
