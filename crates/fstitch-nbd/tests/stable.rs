//! A volume of a logical disk as clients of NBD write it, in the crash laboratory.
//!
//! What it prevents: a write with FUA, or a flush, that is acknowledged before contents and maps are stable; writes that are there
//! although one before them is not; a trim that comes undone after it was promised.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, MemDevice, Seed};
use fstitch_crashlab::medium::{Base, Image, Mark, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{LabOptions, Level, Oracle, Past, Recorder, Subject};
use fstitch_lld::{Disk, FormatOptions, Options, Volumes};
use fstitch_nbd::{DeviceExport, Export};

const BLOCK: usize = 512;
const BLOCKS: usize = 40;

/// What fills each block.
type Shown = Vec<u8>;

fn options() -> Options {
    Options { cache_size: 64 << 10, checkpoint_interval: 64 << 10, ..Options::default() }
}

fn export(device: Arc<dyn BlockDevice>) -> fstitch_core::Result<DeviceExport> {
    let disk = Arc::new(Disk::open(device, &options())?.0);
    let volume = Volumes::open(disk)?.volume("v")?;
    DeviceExport::new(Arc::new(volume), 512, false)
}

struct Opened;

impl Subject for Opened {
    type Shown = Shown;

    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Shown, Violation> {
        let fail = |error: fstitch_core::Error| Violation::new("unreadable", error.to_string());
        let mut bytes = vec![0xff; BLOCKS * BLOCK];
        export(device).map_err(fail)?.read(0, &mut bytes).map_err(fail)?;
        let blocks = bytes.chunks(BLOCK);
        match blocks.clone().find(|block| **block != [block[0]; BLOCK]) {
            Some(_) => Err(Violation::new("torn-block", "a block has parts of two writes")),
            None => Ok(blocks.map(|block| block[0]).collect()),
        }
    }
}

/// What the volume was after each write and trim, and how many of them each promise covers.
struct Versions(Vec<Shown>, Vec<usize>);

impl Oracle for Versions {
    type Shown = Shown;

    fn at(&self, progress: Progress) -> Judge<'_, Shown> {
        let count = |n: u32| usize::try_from(n).unwrap();
        let promised = count(progress.promises).checked_sub(1).map_or(0, |last| self.1[last]);
        let window = promised..=count(progress.begun);
        Box::new(move |shown| match self.0[window.clone()].contains(shown) {
            true => Ok(()),
            false => Err(Violation::new("not-a-moment", format!("{shown:?} is none of {window:?}"))),
        })
    }
}

/// An empty volume on a disk.
fn made() -> Vec<u8> {
    let made = Arc::new(MemDevice::from_image(512, vec![0; (30 * 128 + 9) * 512]));
    let format = FormatOptions { block_size: 512, segment_size: 64 << 10, ..FormatOptions::default() };
    Disk::format(Arc::clone(&made) as Arc<dyn BlockDevice>, &format).unwrap();
    let (disk, _) = Disk::open(Arc::clone(&made) as Arc<dyn BlockDevice>, &options()).unwrap();
    Volumes::open(Arc::new(disk)).unwrap().create("v", to_u64(BLOCKS * BLOCK)).unwrap();
    made.image()
}

/// Writes and trims single blocks: more of them at once are atomic by no promise.
fn program(image: Vec<u8>, seed: &mut Seed) -> Past<'static, Opened> {
    let base = Base::new(512, image);
    let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
    let export = export(Arc::clone(&recorder) as Arc<dyn BlockDevice>).unwrap();
    let (mut versions, mut promised) = (vec![vec![0; BLOCKS]], Vec::new());
    let promise = |promised: &mut Vec<usize>, done| {
        recorder.mark(Mark::Promise(u32::try_from(promised.len()).unwrap()));
        promised.push(done);
    };
    for number in 0..40_u32 {
        let block = to_usize(seed.below(to_u64(BLOCKS)));
        let (offset, fua) = (to_u64(block * BLOCK), seed.below(4) == 0);
        let mut shown = versions.last().unwrap().clone();
        recorder.mark(Mark::Begin(number));
        if seed.below(5) == 0 {
            export.trim(offset, to_u64(BLOCK), fua).unwrap();
            shown[block] = 0;
        } else {
            shown[block] = number.to_le_bytes()[0] + 1;
            export.write(offset, &[shown[block]; BLOCK], fua).unwrap();
        }
        recorder.mark(Mark::End(number));
        versions.push(shown);
        if fua {
            promise(&mut promised, versions.len() - 1);
        }
        if seed.below(8) == 0 {
            export.flush().unwrap();
            promise(&mut promised, versions.len() - 1);
        }
    }
    drop(export);
    let oracle = Box::leak(Box::new(Versions(versions, promised)));
    let names = ("logical-disk".to_owned(), "nbd".to_owned());
    Past { names, base, log: recorder.take(), subject: &Opened, oracle }
}

#[test]
fn what_was_acknowledged_is_there() {
    let image = made();
    let mut states = 0;
    for number in 0..8 {
        let level = Level::ALL[to_usize(number % to_u64(Level::ALL.len()))];
        let past = program(image.clone(), &mut Seed::new(number));
        let lab = LabOptions { level, choices_per_cut: 16, ..LabOptions::default() };
        let outcome = past.judge(lab);
        assert_eq!(outcome.found, [], "run {number} at {level}");
        states += outcome.counts.generated;
    }
    assert!(states > 500, "{states} states");
}
