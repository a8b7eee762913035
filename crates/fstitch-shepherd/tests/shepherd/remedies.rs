//! `full-check` and `remount`: whoever has the volume open is asked, in a thread of its own, while the read that asks waits for it.
//!
//! What it prevents: a remedy that waits for itself, a read that waits for ever, writes of an opening that was given up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::Duration;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, IoOp, MemDevice};
use fstitch_crashlab::{Defect, Fault, FaultDevice, FaultPlan, Times};
use fstitch_shepherd::engine::Incident;
use fstitch_shepherd::model::Event;
use fstitch_shepherd::{Era, Options, Remedy, Shepherd, Stretch};

const BLOCK: usize = 1024;
const VOLUME: u64 = 512;
const HOME: BlockNo = BlockNo(40);

const CHECKED: &str = "[metadata]\nread = [\"verify\", \"sanity\", \"full-check\"]\nwrite = [\"verify\"]";
const OPENED_ANEW: &str = "[all]\nread = [\"verify\", \"remount\"]\nwrite = [\"verify\", \"remount\"]";

type Does = Box<dyn Fn(&Arc<Shepherd>) -> bool + Send + Sync>;

/// Does what a test says, and counts.
struct Told {
    volume: OnceLock<Weak<Shepherd>>,
    does: Does,
    called: AtomicUsize,
    ended: Mutex<usize>,
    end: Condvar,
}

impl Told {
    fn called(&self) -> bool {
        self.called.fetch_add(1, Ordering::SeqCst);
        let helped = (self.does)(&self.volume.get().and_then(Weak::upgrade).unwrap());
        *self.ended.lock().unwrap() += 1;
        self.end.notify_all();
        helped
    }

    fn calls(&self) -> usize {
        self.called.load(Ordering::SeqCst)
    }

    fn wait_for_the_end(&self) {
        drop(self.end.wait_while(self.ended.lock().unwrap(), |ended| *ended == 0).unwrap());
    }
}

impl Remedy for Told {
    fn full_check(&self) -> bool {
        self.called()
    }

    fn remount(&self) -> bool {
        self.called()
    }
}

struct Anything;

impl fstitch_shepherd::Rules for Anything {
    fn judge(&self, _: BlockKind, _: BlockNo, _: &[u8]) -> Option<String> {
        None
    }
}

struct Rig {
    disk: Arc<FaultDevice<MemDevice>>,
    shepherd: Arc<Shepherd>,
    remedy: Arc<Told>,
    told: Arc<Mutex<Vec<Incident>>>,
}

fn rig(
    policy: &str,
    patience: Duration,
    does: impl Fn(&Arc<Shepherd>) -> bool + Send + Sync + 'static,
) -> Rig {
    let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default()));
    let area: Vec<BlockNo> = (200..400).map(BlockNo).collect();
    let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    let blocks = [Stretch::one(HOME, BlockKind::Inode)];
    Shepherd::format(device(), &area, [3; 16], policy, &[2], &blocks, &mut |_, _| {}).unwrap();
    let remedy = Arc::new(Told {
        volume: OnceLock::new(),
        does: Box::new(does),
        called: AtomicUsize::new(0),
        ended: Mutex::new(0),
        end: Condvar::new(),
    });
    let told = Arc::new(Mutex::new(Vec::new()));
    let teller = Arc::clone(&told);
    let options = Options {
        rules: Some(Arc::new(Anything)),
        remedy: Some(Arc::clone(&remedy) as Arc<dyn Remedy>),
        watch: Arc::new(move |incident| teller.lock().unwrap().push(incident.clone())),
        patience,
        ..Options::default()
    };
    let (shepherd, _) = Shepherd::open(device(), &area, options).unwrap();
    let shepherd = Arc::new(shepherd);
    remedy.volume.set(Arc::downgrade(&shepherd)).unwrap();
    put(&*shepherd, 1).unwrap();
    shepherd.settle().unwrap();
    Rig { disk, shepherd, remedy, told }
}

const LONG: Duration = Duration::from_secs(60);

fn put(device: &dyn BlockDevice, fill: u8) -> fstitch_core::Result<()> {
    device.write(&[BlockWrite { block: HOME, kind: BlockKind::Inode, data: &[fill; BLOCK] }])
}

fn get(device: &dyn BlockDevice) -> fstitch_core::Result<u8> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block: HOME, kind: BlockKind::Inode, data: &mut data }])?;
    assert!(data.iter().all(|byte| *byte == data[0]));
    Ok(data[0])
}

impl Rig {
    fn damage(&self) {
        let data = &[9; BLOCK];
        self.disk.device().write(&[BlockWrite { block: HOME, kind: BlockKind::Data, data }]).unwrap();
    }

    fn writes_fail(&self, times: Times) {
        let blocks = Some(HOME.get()..HOME.get() + 1);
        let fault = Fault { blocks, op: Some(IoOp::Write), times, ..Fault::new(Defect::Error) };
        self.disk.set_plan(FaultPlan::one(fault));
    }

    fn events(&self) -> Vec<Vec<Event>> {
        self.told.lock().unwrap().iter().map(|incident| incident.events.clone()).collect()
    }
}

#[test]
fn a_read_waits_for_the_check_and_asks_again() {
    let rig = rig(CHECKED, LONG, |volume| {
        // What the check itself reads does not come back here.
        get(&**volume).unwrap_err();
        put(&**volume, 2).unwrap();
        volume.flush().is_ok()
    });
    rig.damage();
    assert_eq!(get(&*rig.shepherd).unwrap(), 2);
    assert_eq!(rig.remedy.calls(), 1);
    assert_eq!(rig.events()[1], [Event::SumDiffers, Event::Checked]);
    assert_eq!(rig.events()[0][1], Event::CheckedInVain, "the check's own read");
}

#[test]
fn a_check_that_finds_damage_or_panics_or_takes_too_long_is_in_vain() {
    let in_vain = |rig: &Rig| {
        rig.damage();
        get(&*rig.shepherd).unwrap_err();
        // On a busy machine a check that takes too long may have been given up before its thread ran.
        for _ in 0..100_000_000 {
            if rig.remedy.calls() > 0 {
                break;
            }
            std::thread::yield_now();
        }
        assert_eq!(rig.remedy.calls(), 1);
        let last = rig.events().pop().unwrap();
        assert_eq!(last[1], Event::CheckedInVain);
        assert!(matches!(last[2], Event::Ended(_)));
    };
    in_vain(&rig(CHECKED, LONG, |_| false));
    in_vain(&rig(CHECKED, LONG, |_| true));
    in_vain(&rig(CHECKED, LONG, |_| panic!("this check has a bug")));
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    in_vain(&rig(CHECKED, Duration::from_millis(20), move |_| wait.lock().unwrap().recv().is_err()));
    drop(done);
}

/// Of a check a read sees by itself whether it has helped; of a volume that was to be opened anew it is told.
#[test]
fn an_opening_that_panics_is_in_vain() {
    let rig = rig(OPENED_ANEW, LONG, |_| panic!("this opening has a bug"));
    rig.damage();
    get(&*rig.shepherd).unwrap_err();
    assert_eq!(rig.events().pop().unwrap()[1], Event::RemountedInVain);
}

#[test]
fn readers_that_come_meanwhile_wait_for_the_same_check() {
    let waiting = Arc::new((Mutex::new(0), Condvar::new()));
    let all = Arc::clone(&waiting);
    let rig = rig(CHECKED, LONG, move |volume| {
        let (count, more) = &*all;
        drop(more.wait_while(count.lock().unwrap(), |count| *count < 4).unwrap());
        put(&**volume, 2).is_ok()
    });
    rig.damage();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                *waiting.0.lock().unwrap() += 1;
                waiting.1.notify_all();
                assert_eq!(get(&*rig.shepherd).unwrap(), 2);
            });
        }
    });
    assert!(rig.remedy.calls() <= 4, "one that comes late finds it repaired");
}

#[test]
fn a_write_that_asks_for_it_does_not_wait_and_is_given_up() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let eras: Arc<Mutex<Vec<Arc<Era>>>> = Arc::default();
    let those = Arc::clone(&eras);
    let rig = rig(OPENED_ANEW, LONG, move |volume| {
        wait.lock().unwrap().recv().unwrap();
        those.lock().unwrap().iter().for_each(|era| era.end());
        volume.recover().is_ok()
    });
    let era = Arc::new(Era::new(Arc::clone(&rig.shepherd)));
    rig.writes_fail(Times::Transient(1));
    put(&*era, 2).unwrap_err();
    assert_eq!(rig.remedy.calls(), 0, "it is not settled");
    era.settled();
    eras.lock().unwrap().push(Arc::clone(&era));
    rig.writes_fail(Times::Transient(1));
    put(&*era, 2).unwrap_err();
    put(&*era, 3).unwrap();
    rig.writes_fail(Times::Transient(1));
    put(&*era, 4).unwrap_err();
    go.send(()).unwrap();
    rig.remedy.wait_for_the_end();
    for error in [put(&*era, 5).unwrap_err(), era.flush().unwrap_err(), get(&*era).map(drop).unwrap_err()] {
        assert!(error.to_string().contains("opened anew"), "{error}");
    }
    era.discard(HOME, 1).unwrap_err();
    let next = Era::new(Arc::clone(&rig.shepherd));
    // Not what a write that failed would have left.
    assert_eq!(get(&next).unwrap(), 3);
    assert_eq!(rig.remedy.calls(), 1);
    let remounted = rig.events().iter().filter(|events| events.contains(&Event::Remounted)).count();
    assert_eq!(remounted, 2);
}

#[test]
fn what_a_failed_write_noted_is_forgotten_when_the_volume_recovers() {
    let rig = rig(OPENED_ANEW, LONG, |volume| volume.recover().is_ok());
    let era = Era::new(Arc::clone(&rig.shepherd));
    rig.writes_fail(Times::Transient(1));
    put(&era, 2).unwrap_err();
    get(&era).unwrap_err();
    era.settled();
    assert_eq!(get(&era).unwrap(), 1);
    assert_eq!(rig.events().pop().unwrap(), [Event::SumDiffers, Event::Remounted]);
    rig.shepherd.close().unwrap();
}

/// Nothing else than the medium says then what a home held that cannot be read while the volume recovers.
#[test]
fn what_a_failed_write_noted_is_forgotten_of_a_home_that_cannot_be_looked_at() {
    let rig = rig(OPENED_ANEW, LONG, |_| false);
    rig.writes_fail(Times::Transient(1));
    put(&*rig.shepherd, 2).unwrap_err();
    let (blocks, op) = (Some(HOME.get()..HOME.get() + 1), Some(IoOp::Read));
    let fault = Fault { blocks, op, times: Times::Sticky, ..Fault::new(Defect::Error) };
    rig.disk.set_plan(FaultPlan::one(fault));
    rig.shepherd.recover().unwrap();
    rig.disk.set_plan(FaultPlan::default());
    assert_eq!(get(&*rig.shepherd).unwrap(), 1);
    rig.shepherd.close().unwrap();
}

/// Has had enough.
struct Unwilling;

impl Remedy for Unwilling {
    fn is_willing(&self) -> bool {
        false
    }

    fn full_check(&self) -> bool {
        unreachable!("nobody asks who is not willing")
    }

    fn remount(&self) -> bool {
        unreachable!("nobody asks who is not willing")
    }
}

#[test]
fn of_who_is_not_willing_nothing_is_asked_and_the_chain_goes_on() {
    let policy = "[all]\nread = [\"remount\", \"retry 1\"]\nwrite = [\"remount\", \"retry 1\"]";
    let disk = Arc::new(FaultDevice::new(MemDevice::new(1024, VOLUME), FaultPlan::default()));
    let area: Vec<BlockNo> = (200..400).map(BlockNo).collect();
    let device = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
    Shepherd::format(device(), &area, [3; 16], policy, &[2], &[], &mut |_, _| {}).unwrap();
    let options = Options { remedy: Some(Arc::new(Unwilling)), ..Options::default() };
    let (shepherd, _) = Shepherd::open(device(), &area, options).unwrap();
    let fails_once = |op| {
        let blocks = Some(HOME.get()..HOME.get() + 1);
        let fault = Fault { blocks, op: Some(op), times: Times::Transient(1), ..Fault::new(Defect::Error) };
        disk.set_plan(FaultPlan::one(fault));
    };
    fails_once(IoOp::Write);
    put(&shepherd, 2).unwrap();
    fails_once(IoOp::Read);
    assert_eq!(get(&shepherd).unwrap(), 2);
    shepherd.await_remedy();
}

#[test]
fn what_lies_there_is_read_whether_it_is_believed_or_not() {
    let rig = rig(CHECKED, LONG, |_| false);
    rig.damage();
    let mut data = vec![0; BLOCK];
    let mut reads = [BlockRead { block: HOME, kind: BlockKind::Inode, data: &mut data }];
    rig.shepherd.read_as_it_lies(&mut reads).unwrap();
    assert_eq!(data, [9; BLOCK]);
    assert_eq!((rig.remedy.calls(), rig.events().len()), (0, 0), "it is no fault");
}

#[test]
fn while_an_opening_is_still_its_writes_wait() {
    let rig = rig(CHECKED, LONG, |_| false);
    let era = Era::new(Arc::clone(&rig.shepherd));
    let (began, begins) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let writer = era.while_still(|| {
            let era = &era;
            let writer = scope.spawn(move || {
                began.send(()).unwrap();
                put(era, 2)
            });
            begins.recv().unwrap();
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(get(&*rig.shepherd).unwrap(), 1, "what is still is looked at from outside");
            writer
        });
        writer.join().unwrap().unwrap();
    });
    assert_eq!(get(&era).unwrap(), 2);
}

#[test]
fn who_cannot_do_it_is_not_asked_for_it() {
    for (policy, step) in [(CHECKED, "full-check"), (OPENED_ANEW, "remount")] {
        let policy = fstitch_shepherd::Policy::parse(policy).unwrap();
        let options = Options { rules: Some(Arc::new(Anything)), ..Options::default() };
        let refused = Shepherd::check(&policy, &options).unwrap_err().to_string();
        assert!(refused.contains(&format!("the step `{step}`")), "{refused}");
    }
}
