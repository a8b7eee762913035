//! The ordering oracle: random programs of patchgroups, dependencies and operations, and every image that a power cut could
//! have left of them.
//!
//! An *effect* is an operation whose traces no other operation touches, so that it can be seen on an image whether some of it
//! is there, and whether all of it is. **The rule**: where some effect of a group is there, and be it in part, every effect of
//! every group that it depends on is there entirely. What `pg_sync` has returned for is there.

use std::sync::Arc;

use fstitch_core::groups::{Engaged, GroupCall, GroupId};
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    BlockDevice, Caller, FileSystem, FindingClass, InodeNo, RenameMode, Result, Seed, SetAttr, XattrSetMode,
};

use crate::medium::{History, Image, Level, Mark, Recorder, for_each_choice, for_each_cut};
use crate::oracle::Violation;
use crate::system::{Mounted, System};

/// Effects of a program, at most: so many traces are prepared.
const EFFECTS: u32 = 40;
/// Groups of a program, at most.
const GROUPS: usize = 24;
/// Bytes that an effect writes into a file that all share.
const SLOT: usize = 700;

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GroupCounts {
    /// Programs run.
    pub programs: u64,
    /// Their effects, and the dependencies between their groups.
    pub effects: u64,
    /// Dependencies between groups.
    pub dependencies: u64,
    /// Moments at which the power was cut.
    pub cuts: u64,
    /// Images looked at.
    pub states: u64,
    /// Images in which a dependent group had begun.
    pub telling: u64,
}

impl GroupCounts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.programs += other.programs;
        self.effects += other.effects;
        self.dependencies += other.dependencies;
        self.cuts += other.cuts;
        self.states += other.states;
        self.telling += other.telling;
    }
}

/// What an effect does; `k` makes its traces its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Create,
    Slot,
    Append(u64),
    Unlink,
    Rename,
    Mode,
    Mkdir,
    Attribute,
    Truncate,
    /// New contents of a file that somebody has made who works for no group, a moment before.
    Fresh,
}

#[derive(Clone, Copy, Debug)]
struct Effect {
    k: u32,
    kind: Kind,
    /// The groups that were engaged, one bit each.
    groups: u32,
}

/// How much of an effect is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Nothing,
    Some,
    All,
}

struct Group {
    id: GroupId,
    /// The groups that it comes after, one bit each, with those that they come after.
    befores: u32,
    engaged: bool,
    was_engaged: bool,
    sealed: bool,
}

/// A program while it runs.
struct Run<'a> {
    fs: &'a dyn FileSystem,
    recorder: &'a Recorder<Image>,
    seed: Seed,
    groups: Vec<Group>,
    effects: Vec<Effect>,
    /// Steps done, and after which of them which effects, by their number, were made stable.
    steps: u32,
    stable: Vec<(u32, Vec<usize>)>,
    appended: u64,
    /// For the canary: operations are not told of their groups.
    is_deaf: bool,
}

fn byte(k: u32) -> u8 {
    u8::try_from(k % 250).expect("below 250") + 1
}

/// Makes what effects take away or change.
fn prepare(fs: &dyn FileSystem) -> Result<()> {
    let (caller, root) = (Caller::default(), fs.root());
    for dir in [&b"d0"[..], b"d1"] {
        fs.mkdir(&caller, root, dir, 0o755)?;
    }
    for name in ["shared", "log"] {
        fs.mknod(&caller, root, name.as_bytes(), 0o100_644, 0)?;
    }
    let shared = fs.lookup(root, b"shared")?.attr.ino;
    fs.write(&caller, shared, 0, &vec![0; SLOT * usize::try_from(EFFECTS).expect("a small constant")])?;
    for k in 0..EFFECTS {
        let made = fs.mknod(&caller, root, format!("o{k}").as_bytes(), 0o100_644, 0)?;
        fs.write(&caller, made.attr.ino, 0, &[byte(k); 1500])?;
    }
    Ok(())
}

impl Run<'_> {
    fn step(&mut self) -> Result<()> {
        self.recorder.mark(Mark::Begin(self.steps));
        let done = match self.seed.below(16) {
            0 => self.create(),
            1 => self.depend(),
            2 => self.engage(),
            3 => self.disengage(),
            4..=6 => self.succeed(),
            7 if self.seed.chance(1, 4) => self.sync(),
            8 if self.seed.chance(1, 8) => self.sync_outside(),
            _ => self.effect(),
        };
        self.recorder.mark(Mark::End(self.steps));
        self.steps += 1;
        done
    }

    fn call(&self, call: GroupCall) -> Result<GroupId> {
        self.fs.group(call)
    }

    fn create(&mut self) -> Result<()> {
        if self.groups.len() < GROUPS {
            let id = self.call(GroupCall::Create)?;
            self.groups.push(Group { id, befores: 0, engaged: false, was_engaged: false, sealed: false });
        }
        Ok(())
    }

    fn any(&mut self) -> Option<usize> {
        let count = to_u64(self.groups.len());
        (count > 0).then(|| to_usize(self.seed.below(count)))
    }

    fn depend(&mut self) -> Result<()> {
        let (Some(after), Some(before)) = (self.any(), self.any()) else { return Ok(()) };
        self.depend_on(after, before)
    }

    /// What programs mostly do: a group ends, and a new one that comes after it begins.
    fn succeed(&mut self) -> Result<()> {
        let Some(before) = self.any() else { return self.create() };
        if self.groups.len() == GROUPS {
            return Ok(());
        }
        if self.groups[before].engaged {
            self.disengage_one(before)?;
        }
        self.create()?;
        let after = self.groups.len() - 1;
        self.depend_on(after, before)?;
        self.engage_one(after)
    }

    fn depend_on(&mut self, after: usize, before: usize) -> Result<()> {
        let call = GroupCall::Depend { after: self.groups[after].id, before: self.groups[before].id };
        let target = &self.groups[after];
        let lawful =
            after != before && !(target.was_engaged || target.sealed) && !self.groups[before].engaged;
        match (self.call(call), lawful) {
            (Ok(_), true) => {
                self.groups[after].befores |= self.groups[before].befores | 1 << before;
                self.groups[before].sealed = true;
                Ok(())
            }
            (Err(_), false) => Ok(()),
            (done, _) => unexpected("depend", done.is_ok()),
        }
    }

    fn engage(&mut self) -> Result<()> {
        let Some(at) = self.any() else { return Ok(()) };
        self.engage_one(at)
    }

    fn engage_one(&mut self, at: usize) -> Result<()> {
        if self.groups[at].engaged {
            return Ok(());
        }
        match (self.call(GroupCall::Engage(self.groups[at].id)), self.groups[at].sealed) {
            (Ok(_), false) => {
                (self.groups[at].engaged, self.groups[at].was_engaged) = (true, true);
                Ok(())
            }
            (Err(_), true) => Ok(()),
            (done, _) => unexpected("engage", done.is_ok()),
        }
    }

    fn disengage(&mut self) -> Result<()> {
        let Some(at) = self.any() else { return Ok(()) };
        self.disengage_one(at)
    }

    fn disengage_one(&mut self, at: usize) -> Result<()> {
        let done = self.call(GroupCall::Disengage(self.groups[at].id)).is_ok();
        if done != self.groups[at].engaged {
            return unexpected("disengage", done);
        }
        self.groups[at].engaged = false;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let Some(at) = self.any() else { return Ok(()) };
        self.call(GroupCall::Sync(self.groups[at].id))?;
        let wanted = self.groups[at].befores | 1 << at;
        let stable = |(no, effect): (usize, &Effect)| (effect.groups & wanted != 0).then_some(no);
        let stable = self.effects.iter().enumerate().filter_map(stable).collect();
        self.stable.push((self.steps, stable));
        Ok(())
    }

    /// Somebody who works for no group makes a file stable, or everything.
    fn sync_outside(&mut self) -> Result<()> {
        let is_all = self.seed.chance(1, 2);
        if is_all {
            self.fs.sync()?;
        } else {
            self.fs.fsync(self.fs.lookup(self.fs.root(), b"shared")?.attr.ino, false)?;
        }
        let stable = |(no, effect): (usize, &Effect)| (is_all || effect.kind == Kind::Slot).then_some(no);
        self.stable.push((self.steps, self.effects.iter().enumerate().filter_map(stable).collect()));
        Ok(())
    }

    fn effect(&mut self) -> Result<()> {
        let k = u32::try_from(self.effects.len()).expect("few effects");
        if k >= EFFECTS {
            return Ok(());
        }
        let kind = match self.seed.below(10) {
            0 => Kind::Create,
            1 => Kind::Slot,
            2 => Kind::Append(self.appended),
            3 => Kind::Unlink,
            4 => Kind::Rename,
            5 => Kind::Mode,
            6 => Kind::Mkdir,
            7 => Kind::Attribute,
            8 => Kind::Fresh,
            _ => Kind::Truncate,
        };
        if kind == Kind::Fresh {
            let (caller, root) = (Caller::default(), self.fs.root());
            let made = self.fs.mknod(&caller, root, format!("f{k}").as_bytes(), 0o100_644, 0)?;
            self.fs.write(&caller, made.attr.ino, 0, &[0; SLOT])?;
        }
        let engaged: Vec<usize> = (0..self.groups.len()).filter(|&at| self.groups[at].engaged).collect();
        let groups = engaged.iter().fold(0, |bits, &at| bits | 1 << at);
        let effect = Effect { k, kind, groups };
        let ids: Vec<GroupId> = engaged.iter().map(|&at| self.groups[at].id).collect();
        let _engaged = Engaged::enter(if self.is_deaf { &[] } else { &ids });
        perform(self.fs, &effect)?;
        if let Kind::Append(_) = kind {
            self.appended += u64::try_from(SLOT).expect("a small constant");
        }
        self.effects.push(effect);
        Ok(())
    }
}

fn unexpected(what: &str, succeeded: bool) -> Result<()> {
    let how = if succeeded { "succeeded" } else { "failed" };
    Err(fstitch_core::Error::Unsupported(format!("{what} {how} against the table of states")))
}

fn directory(fs: &dyn FileSystem, k: u32) -> Result<InodeNo> {
    Ok(fs.lookup(fs.root(), if k.is_multiple_of(2) { b"d0" } else { b"d1" })?.attr.ino)
}

fn perform(fs: &dyn FileSystem, effect: &Effect) -> Result<()> {
    let (caller, root, k) = (Caller::default(), fs.root(), effect.k);
    let old = format!("o{k}").into_bytes();
    let ino = |name: &[u8]| fs.lookup(root, name).map(|entry| entry.attr.ino);
    match effect.kind {
        Kind::Create => {
            let made = fs.mknod(&caller, directory(fs, k)?, format!("n{k}").as_bytes(), 0o100_644, 0)?;
            fs.write(&caller, made.attr.ino, 0, &vec![byte(k); 1 + 977 * usize::from(byte(k) % 7)])?;
        }
        Kind::Slot => {
            let at = u64::from(k) * u64::try_from(SLOT).expect("a small constant");
            fs.write(&caller, ino(b"shared")?, at, &[byte(k); SLOT])?;
        }
        Kind::Append(at) => drop(fs.write(&caller, ino(b"log")?, at, &[byte(k); SLOT])?),
        Kind::Unlink => fs.unlink(&caller, root, &old)?,
        Kind::Rename => {
            let to = (directory(fs, k)?, format!("r{k}"));
            fs.rename(&caller, (root, &old), (to.0, to.1.as_bytes()), RenameMode::Replace)?;
        }
        Kind::Mode => {
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            fs.setattr(&caller, ino(&old)?, &set)?;
        }
        Kind::Mkdir => drop(fs.mkdir(&caller, directory(fs, k)?, format!("x{k}").as_bytes(), 0o755)?),
        Kind::Attribute => {
            fs.setxattr(&caller, ino(&old)?, b"user.trace", &[byte(k); 40], XattrSetMode::Set)?;
        }
        Kind::Truncate => {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            fs.setattr(&caller, ino(&old)?, &set)?;
        }
        Kind::Fresh => drop(fs.write(&caller, ino(format!("f{k}").as_bytes())?, 0, &[byte(k); SLOT])?),
    }
    Ok(())
}

/// How much of an effect an image shows.
fn look(fs: &dyn FileSystem, effect: &Effect) -> Result<Presence> {
    let (root, k) = (fs.root(), effect.k);
    let old = format!("o{k}").into_bytes();
    let find = |dir: InodeNo, name: &[u8]| match fs.lookup(dir, name) {
        Ok(entry) => Ok(Some(entry.attr)),
        Err(error) if error.errno() == fstitch_core::Errno::NOENT => Ok(None),
        Err(error) => Err(error),
    };
    let whole = |done: bool| if done { Presence::All } else { Presence::Nothing };
    let range = |name: &[u8], at: u64| -> Result<Presence> {
        let mut bytes = vec![0; SLOT];
        let Some(attr) = find(root, name)? else { return Ok(Presence::Nothing) };
        let read = fs.read(attr.ino, at, &mut bytes)?;
        let seen = bytes[..read].iter().filter(|&&seen| seen == byte(k)).count();
        Ok(match seen {
            0 => Presence::Nothing,
            SLOT => Presence::All,
            _ => Presence::Some,
        })
    };
    Ok(match effect.kind {
        Kind::Create => {
            let len = 1 + 977 * usize::from(byte(k) % 7);
            let Some(attr) = find(directory(fs, k)?, format!("n{k}").as_bytes())? else {
                return Ok(Presence::Nothing);
            };
            let mut bytes = vec![0; len + 1];
            let read = fs.read(attr.ino, 0, &mut bytes)?;
            let all = read == len && bytes[..read].iter().all(|&seen| seen == byte(k));
            if all { Presence::All } else { Presence::Some }
        }
        Kind::Slot => range(b"shared", u64::from(k) * u64::try_from(SLOT).expect("a small constant"))?,
        Kind::Append(at) => range(b"log", at)?,
        Kind::Fresh => range(format!("f{k}").as_bytes(), 0)?,
        Kind::Unlink => whole(find(root, &old)?.is_none()),
        Kind::Rename => {
            let gone = find(root, &old)?.is_none();
            match (find(directory(fs, k)?, format!("r{k}").as_bytes())?.is_some(), gone) {
                (false, false) => Presence::Nothing,
                (true, true) => Presence::All,
                _ => Presence::Some,
            }
        }
        Kind::Mode => whole(find(root, &old)?.is_some_and(|attr| attr.perm == 0o600)),
        Kind::Mkdir => whole(find(directory(fs, k)?, format!("x{k}").as_bytes())?.is_some()),
        Kind::Attribute => {
            let Some(attr) = find(root, &old)? else { return Ok(Presence::Nothing) };
            match fs.getxattr(attr.ino, b"user.trace") {
                Ok(value) => whole(value == [byte(k); 40]),
                Err(error) if error.errno() == fstitch_core::Errno::NODATA => Presence::Nothing,
                Err(error) => return Err(error),
            }
        }
        Kind::Truncate => whole(find(root, &old)?.is_some_and(|attr| attr.size == 0)),
    })
}

/// What a program has left behind beside its log.
struct Past {
    groups: Vec<u32>,
    effects: Vec<Effect>,
    stable: Vec<(u32, Vec<usize>)>,
}

impl Past {
    /// The rule, on what an image shows after `ended` steps. Returns whether a dependent group had begun.
    fn judge(&self, shown: &[Presence], ended: u32) -> std::result::Result<bool, Violation> {
        let mut telling = false;
        for (after, &befores) in self.groups.iter().enumerate().filter(|(_, befores)| **befores != 0) {
            let begun = |(effect, seen): (&Effect, &Presence)| {
                effect.groups & 1 << after != 0 && *seen != Presence::Nothing
            };
            let Some(first) = self.effects.iter().zip(shown).find(|pair| begun(*pair)) else { continue };
            telling = true;
            let missing = |(effect, seen): &(&Effect, &Presence)| {
                effect.groups & befores != 0 && **seen != Presence::All
            };
            if let Some((missing, seen)) = self.effects.iter().zip(shown).find(missing) {
                let text = format!(
                    "{:?} of group {after} is there, and {seen:?} of {missing:?}, which it comes after",
                    first.0
                );
                return Err(Violation::new("group-order", text));
            }
        }
        for (_, effects) in self.stable.iter().filter(|(step, _)| *step < ended) {
            if let Some(&lost) = effects.iter().find(|&&no| shown[no] != Presence::All) {
                let text = format!("{:?} of {:?}, which was made stable", shown[lost], self.effects[lost]);
                return Err(Violation::new("group-sync-lost", text));
            }
        }
        Ok(telling)
    }
}

/// How programs are judged.
#[derive(Clone, Copy, Debug)]
pub struct GroupOptions {
    /// How badly the medium behaves.
    pub level: Level,
    /// Images visited at each cut, at most.
    pub choices_per_cut: u64,
    /// The file system is not told which operations belong to groups: the oracle must notice.
    pub is_deaf: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self { level: Level::M2, choices_per_cut: 24, is_deaf: false }
    }
}

/// Runs program `number` on a system and judges the images of its past.
///
/// # Errors
/// The first violation.
pub fn judge_group_program(
    system: &dyn System,
    number: u64,
    options: GroupOptions,
) -> std::result::Result<GroupCounts, Violation> {
    let fail = |error: fstitch_core::Error| Violation::new("program-failed", error.to_string());
    let base = system.format().map_err(fail)?;
    let image = Arc::new(Image::new(Arc::clone(&base)));
    let mounted = system.mount(Arc::<Image>::clone(&image)).map_err(fail)?;
    prepare(mounted.fs()).and_then(|()| mounted.unmount()).map_err(fail)?;
    drop(mounted);
    let start = image.changed();
    let recorder = Arc::new(Recorder::new(Image::with(Arc::clone(&base), start.clone())));
    let device: Arc<dyn BlockDevice> = Arc::<Recorder<Image>>::clone(&recorder);
    let mounted = system.mount(device).map_err(fail)?;
    let past = run(&*mounted, &recorder, number, options.is_deaf).map_err(fail)?;
    mounted.unmount().map_err(fail)?;
    let log = recorder.take();
    let mut counts = GroupCounts { programs: 1, ..GroupCounts::default() };
    counts.effects = to_u64(past.effects.len());
    counts.dependencies = past.groups.iter().map(|befores| u64::from(befores.count_ones())).sum();
    let mut outcome = Ok(());
    let history = History::from_stable(Arc::clone(&base), start, options.level);
    for_each_cut(history, &log, &mut |cut| {
        counts.cuts += 1;
        for_each_choice(cut, options.choices_per_cut, &mut Seed::new(number), &mut |choice| {
            counts.states += 1;
            let image = Image::with(Arc::clone(&cut.base), cut.blocks(choice));
            match judge_image(system, image, &past, cut.progress.ended) {
                Ok(telling) => counts.telling += u64::from(telling),
                Err(violation) if outcome.is_ok() => {
                    let at =
                        format!("{} (program {number} on {}, cut {})", violation.text, system.name(), cut.at);
                    outcome = Err(Violation::new(violation.code, at));
                }
                Err(_) => {}
            }
            outcome.is_ok()
        });
    });
    outcome.map(|()| counts)
}

fn run(mounted: &dyn Mounted, recorder: &Recorder<Image>, number: u64, is_deaf: bool) -> Result<Past> {
    let mut run = Run {
        fs: mounted.fs(),
        recorder,
        seed: Seed::new(number),
        groups: Vec::new(),
        effects: Vec::new(),
        steps: 0,
        stable: Vec::new(),
        appended: 0,
        is_deaf,
    };
    let steps = 20 + run.seed.below(80);
    let mut writes = Seed::new(!number);
    for _ in 0..steps {
        run.step()?;
        if writes.chance(1, 4) {
            // Few blocks or most of them: either leaves others behind.
            let quarters = 1 + writes.below(3);
            mounted.write_out(&mut |_| writes.chance(quarters, 4))?;
        }
    }
    for group in &run.groups {
        run.call(GroupCall::Close(group.id))?;
    }
    while mounted.write_out(&mut |_| true)? > 0 {}
    let groups = run.groups.iter().map(|group| group.befores).collect();
    Ok(Past { groups, effects: run.effects, stable: run.stable })
}

fn judge_image(
    system: &dyn System,
    image: Image,
    past: &Past,
    ended: u32,
) -> std::result::Result<bool, Violation> {
    let fail = |code: &'static str| move |error: fstitch_core::Error| Violation::new(code, error.to_string());
    let device: Arc<dyn BlockDevice> = Arc::new(image);
    system.before_mount(&device).map_err(fail("recovery-failed"))?;
    let report = system.check(&device).map_err(fail("check-failed"))?;
    if let Some(finding) = report.findings.iter().find(|finding| finding.class == FindingClass::Corrupt) {
        return Err(Violation::new(finding.code, finding.text.clone()));
    }
    let mounted = system.open(device).map_err(fail("mount-failed"))?;
    let shown: Result<Vec<Presence>> = past.effects.iter().map(|effect| look(mounted.fs(), effect)).collect();
    past.judge(&shown.map_err(fail("unreadable"))?, ended)
}
