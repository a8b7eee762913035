//! What must work after a crash, beyond looking at it: recovering (and crashing again meanwhile), recovering twice,
//! repairing, using the volume and emptying it.

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, Caller, Errno, Error, FileKind, FileSystem, InodeNo, Seed};

use crate::explore::Facts;
use crate::judging::Lawful;
use crate::lab::LabOptions;
use crate::medium::{Base, History, Image, Level, Recorder, for_each_choice, for_each_cut};
use crate::oracle::{CHUNK, Object, ObjectId, Tree, Violation};
use crate::system::System;

/// Images looked at for every moment of a recovery.
const CHOICES_PER_CUT: u64 = 4;

/// A volume after a crash.
pub struct Aftermath<'a> {
    /// The system that it belongs to.
    pub system: &'a dyn System,
    /// The image below everything.
    pub base: &'a Arc<Base>,
    /// How badly the medium behaves when the power fails again.
    pub level: Level,
    /// What the volume shows.
    pub tree: &'a Tree,
}

fn fail(code: &'static str) -> impl Fn(Error) -> Violation {
    move |error| Violation::new(code, error.to_string())
}

impl Aftermath<'_> {
    /// Everything of the above and the reference checker, each with the probability that `options` say.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn sample(&self, options: &LabOptions, lawful: Lawful<'_, Tree>) -> Result<(), Violation> {
        let Lawful { allowed, image, seed, counts, .. } = lawful;
        let sampled = |every: u64, seed: &mut Seed| every > 0 && seed.chance(1, every);
        if sampled(options.aftermath_every, seed) {
            counts.aftermaths += 1;
            counts.during_recovery += self.live_on(&image(), options.depth, seed)? - 1;
        }
        if sampled(options.reference_every, seed) {
            counts.reference += 1;
            self.ask_reference(&image(), allowed)?;
        }
        Ok(())
    }

    /// Everything of the above on `image`; crashes during recovery nest `depth` deep. Returns the images looked at.
    ///
    /// # Errors
    /// The first violation.
    pub fn live_on(&self, image: &Image, depth: u32, seed: &mut Seed) -> Result<u64, Violation> {
        let looked = self.recover(image, depth, seed)?;
        self.repair(image)?;
        self.empty(image)?;
        Ok(looked)
    }

    /// The same where it is installed.
    ///
    /// # Errors
    /// The same.
    pub fn ask_installed_reference(&self, image: &Image, found: u64) -> Result<(), Violation> {
        let is_installed = self.system.reference().is_some_and(|checker| checker.is_installed());
        if is_installed { self.ask_reference(image, found) } else { Ok(()) }
    }

    /// What the reference checker says, of the image and of what our repair leaves of it, `found` being the number of our findings.
    ///
    /// # Errors
    /// When it disagrees, or mends more than it may.
    pub fn ask_reference(&self, image: &Image, found: u64) -> Result<(), Violation> {
        match self.system.reference() {
            Some(checker) => {
                let mended = checker.judge(image, found)?;
                // It keeps whichever name of a moved directory it meets first, and makes `..` fit.
                let leave = Leave { alike: &grown_to, valid_names: false };
                self.compare(&mended, "the reference checker's repair", &leave)?;
                // And it finds nothing in what our repair leaves.
                checker.judge(&*self.repaired(image)?, 0).map(drop)
            }
            None => Ok(()),
        }
    }

    fn recover(&self, image: &Image, depth: u32, seed: &mut Seed) -> Result<u64, Violation> {
        let recorder = Arc::new(Recorder::new(image.fork()));
        let device: Arc<dyn BlockDevice> = Arc::<Recorder<Image>>::clone(&recorder);
        self.system.recover(device).map_err(fail("recovery-failed"))?;
        let log = recorder.take();
        self.same(recorder.device(), "recovery")?;
        let device: Arc<dyn BlockDevice> = Arc::<Recorder<Image>>::clone(&recorder);
        self.system.recover(device).map_err(fail("second-recovery-failed"))?;
        let writes = recorder.take().writes();
        if writes > 0 {
            return Err(Violation::new(
                "recovery-not-idempotent",
                format!("recovering again wrote {writes} blocks"),
            ));
        }
        if depth == 0 {
            return Ok(1);
        }
        let mut looked = 1;
        let mut outcome = Ok(());
        let history = History::from_stable(Arc::clone(self.base), image.changed(), self.level);
        for_each_cut(history, &log, &mut |cut| {
            for_each_choice(cut, CHOICES_PER_CUT, &mut seed.clone(), &mut |choice| {
                let image = Image::with(Arc::clone(self.base), cut.blocks(choice));
                let deeper = self.same(&image, "a crash during recovery").and_then(|()| {
                    let again = seed.chance(1, 16);
                    if again { self.recover(&image, depth - 1, seed) } else { Ok(1) }
                });
                outcome = deeper.map(|images| looked += images);
                outcome.is_ok()
            });
        });
        outcome.map(|()| looked)
    }

    /// The image is lawful and shows what it showed before.
    fn same(&self, image: &Image, after: &str) -> Result<(), Violation> {
        self.compare(image, after, &Leave { alike: &|old, new| old == new, valid_names: true })
    }

    /// The same, as far as `leave` says.
    fn compare(&self, image: &Image, after: &str, leave: &Leave<'_>) -> Result<(), Violation> {
        match &Facts::of(self.system, image.fork()).shown {
            Ok(tree) => nothing_lost(self.tree, tree, after, leave),
            Err(violation) => {
                Err(Violation::new(violation.code, format!("after {after}: {}", violation.text)))
            }
        }
    }

    fn repair(&self, image: &Image) -> Result<(), Violation> {
        self.same(&*self.repaired(image)?, "repair")
    }

    /// What our repair makes of it, which finds nothing any more.
    fn repaired(&self, image: &Image) -> Result<Arc<Image>, Violation> {
        let image = Arc::new(image.fork());
        let device: Arc<dyn BlockDevice> = Arc::<Image>::clone(&image);
        let left = self.system.repair(&device).map_err(fail("repair-failed"))?;
        match left.findings.first() {
            Some(finding) => {
                Err(Violation::new("repair-incomplete", format!("{}: {}", finding.code, finding.text)))
            }
            None => Ok(image),
        }
    }

    /// Everything can be deleted, and something new made.
    fn empty(&self, image: &Image) -> Result<(), Violation> {
        let image = Arc::new(image.fork());
        let device: Arc<dyn BlockDevice> = Arc::<Image>::clone(&image);
        let mounted = self.system.mount(device).map_err(fail("mount-failed"))?;
        let fs = mounted.fs();
        let caller = Caller::default();
        empty(fs, &caller, fs.root()).map_err(fail("not-deletable"))?;
        let entry = fs.mknod(&caller, fs.root(), b"new", 0o100_644, 0).map_err(fail("not-usable"))?;
        fs.write(&caller, entry.attr.ino, 0, &[1; 5_000]).map_err(fail("not-usable"))?;
        fs.forget(entry.attr.ino, 1);
        mounted.unmount().map_err(fail("not-usable"))?;
        drop(mounted);
        match &Facts::of(self.system, image.fork()).shown {
            Ok(_) => Ok(()),
            Err(violation) => {
                Err(Violation::new(violation.code, format!("after emptying the volume: {}", violation.text)))
            }
        }
    }
}

/// What recovery or repair must leave as it was.
struct Leave<'a> {
    /// Whether an object, but for its names, is what it was.
    alike: &'a dyn Fn(&Object, &Object) -> bool,
    /// Of a moved directory's two names the one that its `..` confirms must stay.
    valid_names: bool,
}

/// e2fsck makes a file longer where a crash has left blocks behind its end; what was there before must be there still.
fn grown_to(old: &Object, new: &Object) -> bool {
    if new.size <= old.size {
        return old == new;
    }
    let chunk = to_u64(CHUNK);
    let same = |(number, bytes): (&u64, &Arc<[u8]>)| {
        let visible = usize::try_from((old.size - number * chunk).min(chunk)).expect("at most a chunk");
        new.chunks.get(number).is_some_and(|grown| grown[..visible] == bytes[..visible])
    };
    old.chunks.iter().all(same)
        && Object { size: old.size, chunks: old.chunks.clone(), ..new.clone() } == *old
}

/// What had a name has it still, and is as it was. Only a directory that had two names may have lost one.
fn nothing_lost(before: &Tree, after: &Tree, what: &str, leave: &Leave<'_>) -> Result<(), Violation> {
    for (id, old) in &before.objects {
        let lost = |text: String| Violation::new("lost-afterwards", format!("{what}: {text}"));
        let Some(new) = after.get(*id) else {
            return Err(lost(format!("{} is gone", before.path_of(*id))));
        };
        for (name, child) in &old.names {
            let second = before.get(*child).is_some_and(|child| child.kind == FileKind::Directory)
                && before.names_of(*child).nth(1).is_some()
                && (!leave.valid_names || is_spare(before, *id, *child));
            if new.names.get(name) != Some(child) && !second {
                let name = String::from_utf8_lossy(name);
                return Err(lost(format!("{} has lost the name {name}", before.path_of(*id))));
            }
        }
        let mut new = Object::clone(new);
        new.names.clone_from(&old.names);
        if !(leave.alike)(old, &new) {
            return Err(lost(format!("{} is not what it was", before.path_of(*id))));
        }
    }
    Ok(())
}

/// Whether `child`, a directory with two names, keeps a valid one without its name in `dir`.
fn is_spare(before: &Tree, dir: ObjectId, child: ObjectId) -> bool {
    let confirmed = |other: ObjectId| before.homes.get(&child) == Some(&other.ino);
    before.is_passing(dir, child)
        || before.names_of(child).filter(|(other, _)| confirmed(*other)).count() != 1
}

fn empty(fs: &dyn FileSystem, caller: &Caller, dir: InodeNo) -> fstitch_core::Result<()> {
    let mut names: Vec<(Vec<u8>, InodeNo)> = vec![];
    fs.readdir(dir, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino));
        true
    })?;
    for (name, ino) in names.iter().filter(|(name, _)| name != b"." && name != b"..") {
        let removed = fs.getattr(*ino).and_then(|attr| match attr.kind {
            FileKind::Directory => empty(fs, caller, *ino).and_then(|()| fs.rmdir(caller, dir, name)),
            _ => fs.unlink(caller, dir, name),
        });
        match removed {
            // The second name of a directory in the middle of a rename goes when the first one does.
            Err(error) if [Errno::NOENT, Errno::STALE].contains(&error.errno()) => {}
            outcome => outcome?,
        }
    }
    Ok(())
}
