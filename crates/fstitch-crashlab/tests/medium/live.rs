//! The device with the power switch: what a cut leaves is what the model allows.

use std::collections::BTreeSet;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Errno, MemDevice, Seed};
use fstitch_crashlab::medium::{Base, History, Level};
use fstitch_crashlab::{FaultDevice, LiveDevice, LiveOptions, Recorder, Survivors};
use proptest::prelude::*;

use crate::past::{BLOCKS, Picture, base, contents, images_of, letters};

fn medium() -> MemDevice {
    let base = base();
    let bytes = (0..BLOCKS).flat_map(|block| base.block(block).to_vec()).collect();
    MemDevice::from_image(1024, bytes)
}

fn device(level: Level) -> LiveDevice<MemDevice> {
    LiveDevice::new(medium(), LiveOptions { level, ..LiveOptions::default() })
}

fn write(device: &dyn BlockDevice, block: u64, text: &str) {
    let data = contents(text);
    device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data: &data }]).unwrap();
}

fn read(device: &dyn BlockDevice, block: u64) -> fstitch_core::Result<String> {
    let mut data = vec![0; 1024];
    device.read(&mut [BlockRead { block: BlockNo(block), kind: BlockKind::Data, data: &mut data }])?;
    Ok(letters(&data))
}

fn picture(medium: &MemDevice) -> Picture {
    medium.image().chunks(1024).map(letters).collect()
}

#[test]
fn reads_see_the_newest_and_the_medium_the_flushed() {
    let device = device(Level::M2);
    write(&device, 0, "xX");
    write(&device, 0, "yY");
    assert_eq!(read(&device, 0).unwrap(), "yY");
    assert_eq!(picture(device.medium()), "aAbBcC");
    assert_eq!(device.volatile_bytes(), 2048);
    device.flush().unwrap();
    assert_eq!(picture(device.medium()), "yYbBcC");
    assert_eq!(device.volatile_bytes(), 0);
}

#[test]
fn after_a_cut_everything_fails() {
    let device = device(Level::M2);
    write(&device, 0, "xX");
    let report = device.cut(Survivors::None).unwrap();
    assert_eq!((report.survived, report.lost), (0, 1));
    assert!(device.is_dead());
    assert_eq!(read(&device, 0).unwrap_err().errno(), Errno::IO);
    let data = contents("zZ");
    let late = BlockWrite { block: BlockNo(1), kind: BlockKind::Data, data: &data };
    assert_eq!(device.write(&[late]).unwrap_err().errno(), Errno::IO);
    assert_eq!(device.flush().unwrap_err().errno(), Errno::IO);
    assert_eq!(device.discard(BlockNo(0), 1).unwrap_err().errno(), Errno::IO);
    assert_eq!(device.cut(Survivors::All).unwrap().survived, 0, "a second cut finds nothing");
    assert_eq!(picture(device.medium()), "aAbBcC");
}

#[test]
fn all_survive_if_told_and_at_the_mild_levels() {
    for (level, survivors) in
        [(Level::M2, Survivors::All), (Level::M1, Survivors::None), (Level::M0, Survivors::Seed(1))]
    {
        let device = device(level);
        write(&device, 0, "xX");
        write(&device, 1, "yY");
        assert_eq!(device.cut(survivors).unwrap().survived, 2);
        assert_eq!(picture(device.medium()), "xXyYcC");
    }
}

#[test]
fn memory_is_bounded_by_writing_the_oldest_through() {
    let options = LiveOptions { level: Level::M2, limit_bytes: 2048 };
    let device = LiveDevice::new(medium(), options);
    for text in ["pP", "qQ", "rR"] {
        write(&device, 0, text);
    }
    assert_eq!(device.volatile_bytes(), 2048);
    assert_eq!(picture(device.medium()), "pPbBcC");
    write(&device, 1, "sS");
    assert_eq!(picture(device.medium()), "qQbBcC");
    assert_eq!(read(&device, 0).unwrap(), "rR");
    device.cut(Survivors::None).unwrap();
    assert_eq!(picture(device.medium()), "qQbBcC");
}

#[test]
fn what_did_not_reach_a_failing_medium_is_not_forgotten() {
    let failing = FaultDevice::new(medium(), "error write; error flush nth=2".parse().unwrap());
    let device = LiveDevice::new(failing, LiveOptions::default());
    write(&device, 0, "xX");
    assert_eq!(device.flush().unwrap_err().errno(), Errno::IO);
    assert_eq!(read(&device, 0).unwrap(), "xX");
    device.flush().unwrap();
    assert_eq!(picture(device.medium().device()), "xXbBcC");
    device.flush().unwrap_err();
}

#[test]
fn survivors_are_read_back_as_printed() {
    for survivors in [Survivors::None, Survivors::All, Survivors::Seed(77)] {
        assert_eq!(survivors.to_string().parse(), Ok(survivors));
    }
    for text in ["", "some", "seed=", "seed=x", "all "] {
        let error = text.parse::<Survivors>().unwrap_err();
        assert!(error.to_string().contains("none, all or seed=N"));
    }
}

/// Random work, seen by a recorder above the device; what a cut leaves must be among the model's images.
fn cut_is_lawful(level: Level, seed: u64, limit_bytes: usize) -> (Picture, BTreeSet<Picture>) {
    let mut dice = Seed::new(seed);
    let recorder = Recorder::new(LiveDevice::new(medium(), LiveOptions { level, limit_bytes }));
    let mut versions = ('d'..='z').zip('D'..='Z');
    for _ in 0..dice.below(9) {
        if dice.chance(1, 5) {
            recorder.flush().unwrap();
        } else {
            let (low, high) = versions.next().unwrap();
            write(&recorder, dice.below(BLOCKS), &format!("{low}{high}"));
        }
    }
    recorder.device().cut(Survivors::Seed(dice.next_u64())).unwrap();
    let mut history = History::new(Base::new(1024, medium().image()), level);
    recorder.take().events.iter().for_each(|event| history.apply(event));
    (picture(recorder.device().medium()), images_of(&history.cut()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_leaves_what_the_model_allows(
        level in prop::sample::select(Level::ALL.to_vec()), seed in any::<u64>(), limit in 0_usize..9,
    ) {
        let (left, allowed) = cut_is_lawful(level, seed, limit * 1024);
        prop_assert!(allowed.contains(&left), "{} is not in {:?}", left, allowed);
    }
}

#[test]
fn seeds_reach_every_image() {
    let mut left = BTreeSet::new();
    let mut allowed = BTreeSet::new();
    for seed in 0..300 {
        let device = device(Level::M2);
        write(&device, 0, "xX");
        write(&device, 0, "yY");
        write(&device, 1, "zZ");
        device.cut(Survivors::Seed(seed)).unwrap();
        left.insert(picture(device.medium()));
    }
    for first in ["aA", "xX", "yY"] {
        for second in ["bB", "zZ"] {
            allowed.insert(format!("{first}{second}cC"));
        }
    }
    assert_eq!(left, allowed);
}

#[test]
fn a_cut_in_place_of_a_flush_happens_when_the_most_is_volatile() {
    let device = device(Level::M2);
    device.cut_at_flush(1, Survivors::All);
    write(&device, 0, "xX");
    device.flush().unwrap();
    assert!(!device.is_dead(), "one flush is skipped");
    write(&device, 1, "yY");
    assert_eq!(device.flush().unwrap_err().errno(), Errno::IO);
    assert!(device.is_dead());
    assert_eq!(picture(device.medium()), "xXyYcC");
    let again = device.cut(Survivors::None).unwrap();
    assert_eq!((again.survived, again.lost), (1, 0), "a second cut does nothing");
}
