//! For a fixed workload the n-th read, write and flush fails, for every n.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, Caller, Errno, Error, FallocateMode, FileSystem, FindingClass, IoOp, Le, RenameMode, Result,
    Seed, SetAttr, XattrSetMode,
};
use fstitch_crashlab::medium::{Base, History, Level, for_each_choice};
use fstitch_crashlab::{Defect, Fault, FaultPlan, Image, Requests, Times};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::uhfs::Uhfs;
use fstitch_patch::Cache;

use crate::volume::{Device, KEPT, base, contents, device, make, mount, with};

type Work = fn(&Uhfs<Ext2>) -> Result<()>;

/// What a step of the workload is, and hence what it must answer once the cache lost something.
enum Step {
    /// Must fail with `EROFS` or `EIO`.
    Change(Work),
    /// Must fail with `EIO`. If it succeeds, the file holds these bytes for ever after.
    Fsync(&'static str, &'static [u8]),
    Sync,
    /// Goes on, because what it needs is in memory.
    Cached(Work),
    /// The flusher at work, whose errors nobody hears.
    Background,
}

/// Images looked at after each run.
const IMAGES: u64 = 48;

fn workload() -> Vec<(&'static str, Step)> {
    beginning().into_iter().chain(end()).collect()
}

fn read_kept(fs: &Uhfs<Ext2>) -> Result<()> {
    assert_eq!(contents(fs, "kept")?, KEPT);
    Ok(())
}

fn beginning() -> Vec<(&'static str, Step)> {
    use Step::{Background, Cached, Change, Fsync};
    vec![
        ("read a file", Cached(read_kept)),
        ("read a large file", Cached(|fs| contents(fs, "big").map(drop))),
        ("make one", Change(|fs| make(fs, fs.root(), "one", &[1; 5_000]))),
        ("fsync one", Fsync("one", &[1; 5_000])),
        (
            "make a directory",
            Change(|fs| {
                let made = fs.mkdir(&Caller::default(), fs.root(), b"new", 0o755)?;
                fs.forget(made.attr.ino, 1);
                Ok(())
            }),
        ),
        ("make two in it", Change(|fs| with(fs, "new", |dir| make(fs, dir, "two", &[2; 20_000])))),
        ("read again", Cached(read_kept)),
        ("write in the background", Background),
        (
            "rename over",
            Change(|fs| {
                let (root, caller) = (fs.root(), Caller::default());
                fs.rename(&caller, (root, b"old"), (root, b"target"), RenameMode::Replace)
            }),
        ),
        ("fsync two", Fsync("new/two", &[2; 20_000])),
        (
            "cut big",
            Change(|fs| {
                with(fs, "big", |ino| {
                    let set = SetAttr { size: Some(20_000), ..SetAttr::default() };
                    fs.setattr(&Caller::default(), ino, &set).map(drop)
                })
            }),
        ),
        (
            "punch big",
            Change(|fs| {
                with(fs, "big", |ino| {
                    fs.fallocate(&Caller::default(), ino, 2_000, 9_000, FallocateMode::PunchHole)
                })
            }),
        ),
    ]
}

fn end() -> Vec<(&'static str, Step)> {
    use Step::{Background, Cached, Change, Fsync, Sync};
    vec![
        (
            "unlink a file",
            Change(|fs| {
                with(fs, "dir", |dir| fs.unlink(&Caller::default(), dir, b"a-file-with-a-rather-long-name-7"))
            }),
        ),
        ("write all the background can", Background),
        ("write all the background can", Background),
        (
            "set an attribute",
            Change(|fs| {
                with(fs, "target", |ino| {
                    fs.setxattr(&Caller::default(), ino, b"user.size", &[5; 90], XattrSetMode::Set)
                })
            }),
        ),
        ("sync", Sync),
        (
            "link",
            Change(|fs| {
                with(fs, "new/two", |ino| {
                    let link = fs.link(&Caller::default(), ino, fs.root(), b"two-again")?;
                    fs.forget(link.attr.ino, 1);
                    Ok(())
                })
            }),
        ),
        ("make three", Change(|fs| make(fs, fs.root(), "three", &[3; 2_500]))),
        ("fsync three", Fsync("three", &[3; 2_500])),
        ("read once more", Cached(read_kept)),
        ("remove one name", Change(|fs| fs.unlink(&Caller::default(), fs.root(), b"two-again"))),
    ]
}

/// What became of a run.
struct Outcome {
    errors: Vec<(String, Error)>,
    promises: Vec<(&'static str, &'static [u8])>,
    requests: Requests,
    device: Arc<Device>,
    poisoned: bool,
}

fn run(base: &Arc<Base>, plan: FaultPlan) -> Outcome {
    let device = device(base, plan);
    let mut outcome = Outcome {
        errors: vec![],
        promises: vec![],
        requests: Requests::default(),
        device: Arc::clone(&device),
        poisoned: false,
    };
    match mount(device.clone()) {
        Ok((cache, fs)) => {
            work(&cache, &fs, &mut outcome);
            cache.check_invariants();
        }
        Err(error) => outcome.errors.push(("mount".into(), error)),
    }
    outcome.requests = device.device().requests();
    outcome
}

fn work(cache: &Cache, fs: &Uhfs<Ext2>, outcome: &mut Outcome) {
    let mut in_memory = false;
    for (name, step) in workload() {
        let poisoned = cache.poisoned().is_some();
        let done = match &step {
            Step::Change(work) | Step::Cached(work) => work(fs),
            Step::Fsync(path, contents) => {
                let synced = with(fs, path, |ino| fs.fsync(ino, false));
                if synced.is_ok() {
                    outcome.promises.push((path, contents));
                }
                synced
            }
            Step::Sync => fs.sync(),
            Step::Background => {
                drop(cache.step());
                continue;
            }
        };
        if let Step::Cached(_) = step {
            in_memory |= done.is_ok();
        }
        if poisoned && (in_memory || !matches!(step, Step::Cached(_))) {
            refused(name, &step, &done);
        }
        if let Err(error) = done {
            outcome.errors.push((name.into(), error));
        }
    }
    let poisoned = cache.poisoned().is_some();
    for again in [false, true] {
        let unmounted = fs.unmount();
        assert!(!(poisoned && unmounted.is_ok()), "unmounting hides what was lost (again: {again})");
        if let Err(error) = unmounted {
            outcome.errors.push(("unmount".into(), error));
        }
    }
    outcome.poisoned = cache.poisoned().is_some();
}

/// The promises of a cache that lost something.
fn refused(name: &str, step: &Step, done: &Result<()>) {
    match (step, done) {
        (Step::Cached(_), Ok(())) => {}
        (Step::Cached(_), Err(error)) => panic!("{name}: what is in memory can be read: {error}"),
        (_, Ok(())) => panic!("{name} succeeded after a failed write"),
        // A file that could not be made cannot be synced either.
        (Step::Fsync(..), Err(error)) => {
            assert!([Errno::IO, Errno::NOENT].contains(&error.errno()), "{name}: {error}");
        }
        (Step::Sync, Err(error)) => assert_eq!(error.errno(), Errno::IO, "{name}: {error}"),
        (_, Err(error)) => {
            let expected = [Errno::ROFS, Errno::IO, Errno::NOENT];
            assert!(expected.contains(&error.errno()), "{name}: {error}");
        }
    }
}

/// The images that the medium may hold afterwards are lawful, keep the promises, and are not called clean if they
/// are not.
fn judge(base: &Arc<Base>, outcome: &Outcome, replay: &str) {
    let mut history = History::new(Arc::clone(base), Level::M2);
    outcome.device.take().events.iter().for_each(|event| history.apply(event));
    let cut = history.cut();
    for_each_choice(&cut, IMAGES, &mut Seed::new(3), &mut |choice| {
        let image = Arc::new(Image::with(Arc::clone(base), cut.blocks(choice)));
        let report = check_ext2(&*image).unwrap();
        let damage = report.findings.iter().find(|finding| finding.class == FindingClass::Corrupt);
        assert!(damage.is_none(), "{replay}: {damage:?}");
        let clean = Le::u16(&image.bytes(), 1024 + 58) & 1 == 1;
        assert!(!clean || report.is_clean(), "{replay}: called clean: {:?}", report.findings);
        let (_, fs) = mount(image).unwrap();
        for (path, promised) in &outcome.promises {
            let found = contents(&fs, path).unwrap_or_else(|error| panic!("{replay}: {path}: {error}"));
            assert!(found == *promised, "{replay}: {path} holds something else");
        }
        true
    });
}

/// Fails the n-th request of `op` for every n, once or from then on.
fn census(op: IoOp, times: Times, count: fn(Requests) -> u64) -> u64 {
    let base = base();
    let healthy = run(&base, FaultPlan::default());
    assert!(healthy.errors.is_empty(), "{:?}", healthy.errors);
    assert_eq!(healthy.promises.len(), 3);
    judge(&base, &healthy, "healthy");
    let total = count(healthy.requests);
    for nth in 1..=total {
        let plan = FaultPlan::one(Fault { op: Some(op), nth, times, ..Fault::new(Defect::Error) });
        let replay = plan.to_string();
        println!("{replay}");
        let outcome = run(&base, plan);
        let injected = outcome.device.device().injected();
        assert!(injected.get("error").is_some_and(|&n| n > 0), "{replay} struck nothing");
        assert!(!outcome.errors.is_empty(), "{replay}: the error was swallowed");
        let mounted = outcome.errors.iter().all(|(step, _)| step != "mount");
        assert!(op == IoOp::Read || outcome.poisoned || !mounted, "{replay}: nothing was poisoned");
        judge(&base, &outcome, &replay);
    }
    total
}

#[test]
fn every_failed_write_surfaces() {
    let total = census(IoOp::Write, Times::Transient(1), |requests| requests.writes);
    assert!(total > 60, "{total} writes");
}

#[test]
fn every_failed_flush_surfaces() {
    let total = census(IoOp::Flush, Times::Transient(1), |requests| requests.flushes);
    assert!(total > 8, "{total} flushes");
}

#[test]
fn every_failed_read_surfaces() {
    let total = census(IoOp::Read, Times::Transient(1), |requests| requests.reads);
    assert!(total > 30, "{total} reads");
}

#[test]
fn media_that_go_on_failing_are_reported_too() {
    for (op, count) in [
        (IoOp::Write, (|requests| requests.writes) as fn(Requests) -> u64),
        (IoOp::Flush, |requests| requests.flushes),
        (IoOp::Read, |requests| requests.reads),
    ] {
        assert!(census(op, Times::Sticky, count) > 8);
    }
}

#[test]
fn a_medium_that_dies_is_survived() {
    let base = base();
    let requests = run(&base, FaultPlan::default()).requests;
    for nth in 1..=requests.reads + requests.writes + requests.flushes {
        let plan = FaultPlan::one(Fault { nth, ..Fault::new(Defect::Dead) });
        let replay = plan.to_string();
        println!("{replay}");
        let outcome = run(&base, plan);
        assert!(!outcome.errors.is_empty(), "{replay}: nobody was told");
        judge(&base, &outcome, &replay);
        assert_eq!(outcome.device.flush().unwrap_err().errno(), Errno::IO);
    }
}
