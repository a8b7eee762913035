//! Directed crash tests: short scripts, each of which makes a few dependencies matter.
//!
//! What it prevents: a missing dependency that random work meets too seldom. A script's work is left in the cache, and
//! then everything is written that can be written while one block is held back, for each block in turn: whatever
//! does not wait for what lies in the block that is held back, though it should, reaches the medium without it.

mod attributes;
mod files;
mod names;
mod rig;
mod space;

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::{BlockNo, FileSystem, Timestamp};
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};

use crate::recorder::Image;
use crate::workload::STALE;
use crate::{judge_contents, judge_structure, mount, reclaim};
use rig::{Raw, Rig};

/// Combinations of the optimisations that make a difference to dependencies.
const COMBINATIONS: [u8; 5] = [0, 1, 2, 8, 15];

/// What a script has to say about an image that a crash may have left.
type Judgement<'a> = &'a dyn Fn(&dyn FileSystem, &Raw<'_>) -> Result<(), String>;

/// A short piece of work and what must hold in each moment of it.
struct Script<'a> {
    block_size: u32,
    inode_size: u32,
    blocks: u64,
    /// Made and stable beforehand.
    prepare: &'a dyn Fn(&Rig),
    /// Done to the unmounted image by hand.
    edit: &'a dyn Fn(&Raw<'_>),
    /// The work whose orders are looked at.
    work: &'a dyn Fn(&Rig),
    /// Besides being lawful.
    expect: Judgement<'a>,
    /// Whether all contents are read; not for files that are nearly all holes.
    read: bool,
    /// Whether the volume is also reclaimed when nothing more can be written.
    thorough: bool,
    /// What one step of a large operation dirties.
    step_bytes: usize,
}

impl Default for Script<'_> {
    fn default() -> Self {
        Self {
            block_size: 1024,
            inode_size: 256,
            blocks: 2048,
            prepare: &|_| (),
            edit: &|_| (),
            work: &|_| (),
            expect: &|_, _| Ok(()),
            read: true,
            thorough: false,
            step_bytes: 1 << 20,
        }
    }
}

impl Script<'_> {
    /// The image before the work; what is free holds somebody's old data.
    fn base(&self) -> Image {
        let bytes = usize::try_from(self.blocks * u64::from(self.block_size)).unwrap();
        let image = Image::new(vec![STALE; bytes], usize::try_from(self.block_size).unwrap());
        let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp { secs: 1_700_000_000, nanos: 0 });
        options.block_size = Some(self.block_size);
        options.inode_size = Some(self.inode_size);
        options.inodes = Some(256);
        options.features.resize_inode = false;
        mkfs(&image, &options, &mut |_, _| {}).unwrap();
        let rig = Rig::new(&image, 15, self.step_bytes);
        (self.prepare)(&rig);
        rig.fs.unmount().unwrap();
        (self.edit)(&Raw(&image));
        judge_structure(&image).expect("what is prepared is lawful");
        image
    }

    /// Plays the script with every combination and each block held back in turn.
    fn play(&self) {
        let base = self.base();
        for combination in COMBINATIONS {
            let mut written = BTreeSet::new();
            self.play_without(&base, combination, None, &mut |no| _ = written.insert(no));
            for &held in &written {
                self.play_without(&base, combination, Some(held), &mut |_| ());
            }
        }
    }

    /// Does the work, writes everything but what waits for `held`, and judges what is then on the medium.
    fn play_without(
        &self,
        base: &Image,
        combination: u8,
        held: Option<BlockNo>,
        wrote: &mut dyn FnMut(BlockNo),
    ) {
        let image = base.fork();
        let rig = Rig::new(&image, combination, self.step_bytes);
        (self.work)(&rig);
        let mut choose = |no| {
            let chosen = Some(no) != held;
            if chosen {
                wrote(no);
            }
            chosen
        };
        loop {
            // What the work itself has made stable counts first.
            if let Err(why) = self.judge(&image) {
                panic!("{why}\n  combination {combination}, block held back: {held:?}");
            }
            if rig.cache.step_blocks(&mut choose).unwrap() == 0 {
                break;
            }
        }
        if self.thorough
            && let Err(why) = reclaim(&image)
        {
            panic!("{why}\n  combination {combination}, block held back: {held:?}");
        }
        rig.cache.check_invariants();
    }

    fn judge(&self, image: &Image) -> Result<(), String> {
        let raw = Raw(image);
        if raw.is_clean() {
            return Err("the changed volume claims to be clean".into());
        }
        judge_structure(image)?;
        let (_cache, fs) = mount(Arc::new(image.fork()), 15, 1 << 20);
        if self.read {
            judge_contents(&fs, fs.root(), "")?;
        }
        (self.expect)(&fs, &raw)
    }
}

/// The check itself can fail: a name that is expected to be there from the start is not.
#[test]
#[should_panic(expected = "too early")]
fn an_expectation_that_fails_is_heard() {
    let script = Script {
        work: &|rig| rig.create("/a", 1, 0),
        expect: &|fs, _| if fs.walk(b"/a").is_ok() { Ok(()) } else { Err("too early".into()) },
        ..Script::default()
    };
    script.play();
}
