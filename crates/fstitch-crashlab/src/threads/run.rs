//! One run of a program: its threads under a schedule, or its operations one after the other.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, Error, InodeNo, Result, Seed, Structure};

use super::program::{Act, Program};
use super::schedule::Schedule;
use super::turns::{Body, End, Played, Step, Turn, play, said};
use crate::medium::{Base, Bytes, Image, Log, Mark, Recorder};
use crate::oracle::{ObjectId, Tree, Violation};
use crate::system::{Mounted, System};
use crate::workload::{Op, Target};

/// Numbers of the acts of thread 0, 1, 2, … begin at 1, 2, 3, … times so many; what is done before them begins at 0.
const OF_THREAD: u32 = 1000;
/// Those of the set-up, so that their bytes are nobody else's.
const SETUP: u32 = 1 << 20;

/// What somebody did.
#[derive(Clone, Debug)]
pub struct Deed {
    /// Its number.
    pub no: u32,
    /// What.
    pub act: Act,
    /// `ok`, or the error.
    pub answer: String,
    /// What a sync was about.
    pub sync: Option<Synced>,
}

/// The file of an fsync.
#[derive(Clone, Debug)]
pub struct Synced {
    /// Which.
    pub id: ObjectId,
    /// The act that found it, and by which path.
    pub found_by: u32,
    /// The path.
    pub path: String,
    /// What it held.
    pub contents: Vec<u8>,
}

/// What came of a run.
pub struct Ran {
    /// What happened to the medium.
    pub log: Log,
    /// What was done, in order of the ends.
    pub deeds: Vec<Deed>,
    /// What the volume showed at the end, before it was unmounted.
    pub tree: std::result::Result<Tree, Violation>,
}

/// The blocks of a volume that differ from a fresh one.
pub type Start = BTreeMap<u64, Bytes>;

/// A volume that a program works on.
struct World {
    mounted: Box<dyn Mounted>,
    recorder: Arc<Recorder<Image>>,
    deeds: Mutex<Vec<Deed>>,
}

/// Does the set-up of a program. Returns what is on the medium then.
///
/// # Errors
/// When it fails.
pub fn set_up(system: &dyn System, base: &Arc<Base>, program: &Program) -> Result<Start> {
    let image = Arc::new(Image::new(Arc::clone(base)));
    let mounted = system.mount(Arc::<Image>::clone(&image))?;
    let write_out = |choose: &mut dyn FnMut(crate::Step) -> bool| mounted.write_out(choose);
    let mut target = Target::new(mounted.fs(), &write_out);
    for (no, op) in (SETUP..).zip(&program.setup) {
        op.run(&mut target, no)?;
    }
    drop(target);
    if !program.crashes {
        mounted.unmount()?;
    }
    // What was not written by now never is: whoever is dropped writes nothing.
    let changed = image.changed();
    drop(mounted);
    Ok(changed)
}

impl World {
    fn new(system: &dyn System, base: &Arc<Base>, start: &Start) -> Result<Self> {
        let recorder = Arc::new(Recorder::new(Image::with(Arc::clone(base), start.clone())));
        let device: Arc<dyn BlockDevice> = Arc::<Recorder<Image>>::clone(&recorder);
        let mounted = system.mount(device)?;
        Ok(Self { mounted, recorder, deeds: Mutex::default() })
    }

    /// What is left when all is done, and no thread is left.
    fn end(&self) -> std::result::Result<Ran, Violation> {
        let read = Tree::read(self.mounted.fs(), None);
        let tree = read.map_err(|error| Violation::new("unreadable-alive", error.to_string()));
        let unmounted = self.mounted.unmount();
        unmounted.map_err(|error| Violation::new("unmount-failed", error.to_string()))?;
        let deeds = std::mem::take(&mut *self.deeds.lock().unpoisoned());
        Ok(Ran { log: self.recorder.take(), deeds, tree })
    }
}

/// Somebody who does things, one after the other.
struct Hand<'a> {
    world: &'a World,
    target: Target<'a>,
    /// What is held, by path: the inode, and the act that found it.
    held: BTreeMap<String, (InodeNo, u32)>,
}

impl<'a> Hand<'a> {
    fn new(world: &'a World, write_out: crate::workload::WriteOut<'a>) -> Self {
        Self { world, target: Target::new(world.mounted.fs(), write_out), held: BTreeMap::new() }
    }

    /// Does `act` and writes down what came of it.
    fn act(&mut self, no: u32, act: &Act) {
        self.world.recorder.mark(Mark::Begin(no));
        let mut sync = None;
        let answer = match self.perform(no, act, &mut sync) {
            Ok(()) => "ok".to_owned(),
            Err(error) => format!("{:?}", error.errno()),
        };
        self.world.recorder.mark(Mark::End(no));
        if answer == "ok" && (sync.is_some() || *act == Act::Op(Op::Sync)) {
            self.world.recorder.mark(Mark::Promise(no));
        }
        let deed = Deed { no, act: act.clone(), answer, sync };
        self.world.deeds.lock().unpoisoned().push(deed);
    }

    fn perform(&mut self, no: u32, act: &Act, sync: &mut Option<Synced>) -> Result<()> {
        let fs = self.world.mounted.fs();
        match act {
            Act::Op(Op::Hold { path }) => {
                let ino = fs.walk(path.as_bytes())?.attr.ino;
                if let Some((before, _)) = self.held.insert(path.clone(), (ino, no)) {
                    fs.forget(before, 1);
                }
                Ok(())
            }
            Act::Op(Op::Fsync { path }) => self.fsync(no, path, sync),
            Act::Op(op) => op.run(&mut self.target, no),
            Act::Check => {
                let report = fs.check()?;
                let first = report.findings.iter().find(|f| f.class == fstitch_core::FindingClass::Corrupt);
                first.map_or(Ok(()), |found| Err(Error::corrupt(Structure::Volume, None, found.text.clone())))
            }
            Act::Reclaim => self.world.mounted.reclaim(),
            Act::Step => self.world.mounted.write_out(&mut |_| true).map(drop),
            Act::Unmount => fs.unmount(),
        }
    }

    /// Makes a file stable, and says what that promises.
    fn fsync(&self, no: u32, path: &str, sync: &mut Option<Synced>) -> Result<()> {
        let fs = self.world.mounted.fs();
        let held = self.held.get(path).copied();
        let (ino, found_by) = match held {
            Some(held) => held,
            None => (fs.walk(path.as_bytes())?.attr.ino, no),
        };
        let done = (|| {
            let attr = fs.getattr(ino)?;
            let id = ObjectId { ino, generation: attr.generation };
            let mut contents = vec![0; to_usize(attr.size)];
            if attr.kind == fstitch_core::FileKind::Regular {
                let read = fs.read(ino, 0, &mut contents)?;
                contents.truncate(read);
            } else {
                contents.clear();
            }
            fs.fsync(ino, false)?;
            *sync = Some(Synced { id, found_by, path: path.to_owned(), contents });
            Ok(())
        })();
        if held.is_none() {
            fs.forget(ino, 1);
        }
        done
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        self.held.values().for_each(|(ino, _)| self.world.mounted.fs().forget(*ino, 1));
    }
}

/// Runs the threads of a program under `schedule`.
///
/// # Errors
/// When they do not come to a good end, alive.
pub fn run_threads(
    system: &dyn System,
    base: &Arc<Base>,
    start: &Start,
    (program, schedule): (&Program, &Schedule),
) -> (std::result::Result<Ran, Violation>, Vec<Step>) {
    let world = match open(system, base, start, program) {
        Ok(world) => Arc::new(world),
        Err(violation) => return (Err(violation), Vec::new()),
    };
    let bodies = program.threads.iter().enumerate().map(|(thread, acts)| {
        let (world, acts) = (Arc::clone(&world), acts.clone());
        Box::new(move |turn: &Turn| live(&world, turn, thread, &acts)) as Body
    });
    let Played { steps, end } = play(schedule, bodies.collect());
    let Some(end) = end else { return (world.end(), steps) };
    // Its threads may be anywhere, and locks poisoned: nothing more is asked of this volume.
    std::mem::forget(world);
    let violation = match end {
        End::Deadlock(report) => Violation::new("deadlock", format!("nobody can go on\n{report}")),
        End::Stuck(report) => Violation::new("stuck", report),
        End::Foreign => Violation::new("foreign-schedule", "no such thread can go on at such a step"),
        End::Panic(text) => Violation::new("panic", text),
    };
    (Err(violation), steps)
}

/// The life of a thread.
fn live(world: &World, turn: &Turn, thread: usize, acts: &[Act]) {
    let write_out = |choose: &mut dyn FnMut(crate::Step) -> bool| world.mounted.write_out(choose);
    let mut hand = Hand::new(world, &write_out);
    for (no, act) in (first(thread)..).zip(acts) {
        hand.act(no, act);
        turn.pass();
    }
}

fn first(thread: usize) -> u32 {
    OF_THREAD * (u32::try_from(thread).expect("few threads") + 1)
}

/// Mounts, and does what comes before the threads.
fn open(
    system: &dyn System,
    base: &Arc<Base>,
    start: &Start,
    program: &Program,
) -> std::result::Result<World, Violation> {
    let fail = |error: Error| Violation::new("mount-failed", error.to_string());
    let world = World::new(system, base, start).map_err(fail)?;
    {
        let write_out = |choose: &mut dyn FnMut(crate::Step) -> bool| world.mounted.write_out(choose);
        let mut hand = Hand::new(&world, &write_out);
        (0..).zip(&program.before).for_each(|(no, act)| hand.act(no, act));
    }
    let deeds = world.deeds.lock().unpoisoned().clone();
    match deeds.iter().find(|deed| deed.answer != "ok") {
        Some(deed) => Err(Violation::new("before-failed", format!("{}: {}", deed.act, deed.answer))),
        None => Ok(world),
    }
}

/// Runs the acts of a program one after the other: each of `order` names the thread whose next one it is.
///
/// # Errors
/// As for [`run_threads`].
pub fn run_serially(
    system: &dyn System,
    base: &Arc<Base>,
    start: &Start,
    (program, order): (&Program, &[usize]),
) -> std::result::Result<Ran, Violation> {
    let world = open(system, base, start, program)?;
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let write_out = |choose: &mut dyn FnMut(crate::Step) -> bool| world.mounted.write_out(choose);
        let mut hands: Vec<Hand<'_>> =
            program.threads.iter().map(|_| Hand::new(&world, &write_out)).collect();
        let mut next = vec![0; program.threads.len()];
        for &thread in order {
            let no = first(thread) + u32::try_from(next[thread]).expect("few acts");
            hands[thread].act(no, &program.threads[thread][next[thread]]);
            next[thread] += 1;
        }
    }));
    lived.map_err(|panic| Violation::new("panic", format!("one act after the other: {}", said(&*panic))))?;
    world.end()
}

/// Orders of the acts of a program, all of them where there are at most `most`, else some that `seed` chooses.
pub fn orders(program: &Program, most: usize, seed: u64) -> Vec<Vec<usize>> {
    let lens: Vec<usize> = program.threads.iter().map(Vec::len).collect();
    let mut all = vec![Vec::new()];
    for _ in 0..lens.iter().sum() {
        all = all
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                let lens = &lens;
                let used = |thread: usize| order.iter().filter(|&&other| other == thread).count();
                let more: Vec<Vec<usize>> = (0..lens.len())
                    .filter(|&thread| used(thread) < lens[thread])
                    .map(|thread| order.iter().copied().chain([thread]).collect())
                    .collect();
                more
            })
            .collect();
        let mut dice = Seed::new(seed);
        while all.len() > most {
            let at = dice.below(to_u64(all.len()));
            all.swap_remove(usize::try_from(at).expect("it is an index"));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_all_there_are() {
        let program = Program::parse("x", "| | sync; sync | sync | sync").unwrap();
        let all = orders(&program, 100, 1);
        assert_eq!(all.len(), 12);
        assert!(all.iter().all(|order| order.iter().filter(|&&thread| thread == 0).count() == 2));
        assert_eq!(orders(&program, 5, 1).len(), 5);
    }
}
