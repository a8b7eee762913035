//! Inheritance and lifetimes, with processes that exist on paper only.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use fstitch_core::waiting;

use super::processes::Life;
use super::*;

const ROOT: u32 = 1;

/// A process on paper.
#[derive(Clone, Debug)]
struct Paper {
    process: Process,
    threads: BTreeSet<u32>,
    over: Arc<AtomicBool>,
}

#[derive(Debug)]
struct PaperLife(Arc<AtomicBool>);

impl Life for PaperLife {
    fn is_over(&self) -> bool {
        self.0.load(Memory::Relaxed)
    }
}

/// All processes, and the time.
#[derive(Debug, Default)]
struct World {
    all: Mutex<BTreeMap<u32, Paper>>,
    hidden: Mutex<BTreeSet<u32>>,
    now: AtomicU64,
}

impl World {
    fn new() -> Arc<Self> {
        let world = Arc::new(Self::default());
        world.start(ROOT, 0);
        world
    }

    fn start(&self, pid: u32, parent: u32) {
        let start = self.now.load(Memory::Relaxed);
        let process = Process { pid, parent, start, ended: false };
        let paper = Paper { process, threads: BTreeSet::from([pid]), over: Arc::default() };
        assert!(self.all.lock().unwrap().insert(pid, paper).is_none(), "the number is in use");
    }

    fn thread(&self, pid: u32, tid: u32) {
        self.all.lock().unwrap().get_mut(&pid).unwrap().threads.insert(tid);
    }

    fn end_thread(&self, pid: u32, tid: u32) {
        self.all.lock().unwrap().get_mut(&pid).unwrap().threads.remove(&tid);
    }

    /// Ends a process; its children go to `adopter`.
    fn end(&self, pid: u32, adopter: u32) {
        let mut all = self.all.lock().unwrap();
        all.remove(&pid).unwrap().over.store(true, Memory::Relaxed);
        for paper in all.values_mut().filter(|paper| paper.process.parent == pid) {
            paper.process.parent = adopter;
        }
    }

    fn tick(&self) {
        self.now.fetch_add(1, Memory::Relaxed);
    }
}

/// The world, as scopes ask for it.
struct View(Arc<World>);

impl Processes for View {
    fn of_thread(&self, tid: u32) -> io::Result<Option<Process>> {
        if self.0.hidden.lock().unwrap().contains(&tid) {
            return Ok(None);
        }
        let all = self.0.all.lock().unwrap();
        Ok(all.values().find(|paper| paper.threads.contains(&tid)).map(|paper| paper.process))
    }

    fn children(&self, pid: u32) -> io::Result<Vec<u32>> {
        let all = self.0.all.lock().unwrap();
        Ok(all.values().filter(|paper| paper.process.parent == pid).map(|paper| paper.process.pid).collect())
    }

    fn has_thread(&self, pid: u32, tid: u32) -> bool {
        self.0.all.lock().unwrap().get(&pid).is_some_and(|paper| paper.threads.contains(&tid))
    }

    fn watch(&self, process: &Process) -> io::Result<Option<Arc<dyn Life>>> {
        let all = self.0.all.lock().unwrap();
        let same = all.get(&process.pid).filter(|paper| paper.process.start == process.start);
        Ok(same.map(|paper| Arc::new(PaperLife(Arc::clone(&paper.over))) as Arc<dyn Life>))
    }

    fn now(&self) -> io::Result<u64> {
        Ok(self.0.now.load(Memory::Relaxed))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    engaged: usize,
    was_engaged: bool,
    sealed: bool,
    after: Vec<GroupId>,
}

/// Groups by the table of states, and nothing else.
#[derive(Debug, Default)]
struct Table {
    groups: Mutex<BTreeMap<GroupId, State>>,
    calls: Mutex<Vec<GroupCall>>,
    syncs: AtomicU64,
    refuses: AtomicBool,
    /// A new group would have to wait.
    waits: AtomicBool,
    /// The life that all inode numbers are in.
    generation: AtomicU32,
}

impl Table {
    fn get(&self, id: GroupId) -> Option<State> {
        self.groups.lock().unwrap().get(&id).cloned()
    }

    fn len(&self) -> usize {
        self.groups.lock().unwrap().len()
    }
}

impl Ordering for Table {
    fn group(&self, call: GroupCall) -> Result<GroupId> {
        if self.refuses.load(Memory::Relaxed) {
            return Err(Errno::OPNOTSUPP.into());
        }
        if call == GroupCall::Create && self.waits.load(Memory::Relaxed) {
            waiting::ask()?;
        }
        self.calls.lock().unwrap().push(call);
        let mut groups = self.groups.lock().unwrap();
        let find = |id| groups.get(&id).cloned().ok_or(Errno::BADF);
        match call {
            GroupCall::Create => {
                let id = GroupId::fresh();
                groups.insert(id, State::default());
                return Ok(id);
            }
            GroupCall::Depend { after, before } => {
                let (mut q, mut p) = (find(after)?, find(before)?);
                match (&q, &p) {
                    _ if after == before => return Err(Errno::INVAL.into()),
                    (q, _) if q.was_engaged || q.sealed => return Err(Errno::INVAL.into()),
                    (_, p) if p.engaged > 0 => return Err(Errno::BUSY.into()),
                    _ => {}
                }
                q.after.push(before);
                p.sealed = true;
                groups.insert(after, q);
                groups.insert(before, p);
                return Ok(after);
            }
            GroupCall::Engage(id) => {
                let mut state = find(id)?;
                if state.sealed {
                    return Err(Errno::INVAL.into());
                }
                state.engaged += 1;
                state.was_engaged = true;
                groups.insert(id, state);
            }
            GroupCall::Disengage(id) => {
                let mut state = find(id)?;
                state.engaged = state.engaged.checked_sub(1).ok_or(Errno::INVAL)?;
                groups.insert(id, state);
            }
            GroupCall::Sync(id) => drop(find(id)?),
            GroupCall::Close(id) => {
                assert_eq!(find(id)?.engaged, 0, "closed while engaged");
                groups.remove(&id);
            }
        }
        let (GroupCall::Engage(id) | GroupCall::Disengage(id) | GroupCall::Sync(id) | GroupCall::Close(id)) =
            call
        else {
            unreachable!("answered above")
        };
        Ok(id)
    }

    fn life(&self, ino: InodeNo) -> Result<InodeId> {
        Ok(InodeId { ino, generation: self.generation.load(Memory::Relaxed) })
    }

    fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Memory::Relaxed);
        Ok(())
    }
}

struct Setup {
    world: Arc<World>,
    table: Arc<Table>,
    scopes: Arc<Scopes>,
}

fn setup() -> Setup {
    let (world, table) = (World::new(), Arc::new(Table::default()));
    let scopes = Scopes::with(Arc::clone(&table) as _, Box::new(View(Arc::clone(&world))));
    Setup { world, table, scopes }
}

impl Setup {
    fn call(&self, tid: u32, call: Call) -> Result<u32> {
        self.scopes.call(Asker { tid, uid: 1000 }, call)
    }

    fn ok(&self, tid: u32, call: Call) -> u32 {
        self.call(tid, call).unwrap()
    }

    fn fails(&self, tid: u32, call: Call) -> Errno {
        self.call(tid, call).unwrap_err().errno()
    }

    /// A group that the process has engaged for everything.
    fn engage(&self, tid: u32) -> u32 {
        let no = self.ok(tid, Call::Create);
        self.ok(tid, Call::Engage(no, About::Everything));
        no
    }

    fn groups(&self, tid: u32) -> Vec<GroupId> {
        self.scopes.work(tid, &[]).unwrap().groups()
    }
}

const WHOLE: About = About::Everything;

#[test]
fn nobody_pays_for_groups_that_nobody_uses() {
    let s = setup();
    s.world.start(10, ROOT);
    assert!(s.groups(10).is_empty() && s.groups(0).is_empty());
    assert_eq!(s.fails(10, Call::Engage(1, WHOLE)), Errno::BADF);
    assert!(!s.scopes.is_used());
}

#[test]
fn children_have_what_their_parent_had_at_their_start() {
    let s = setup();
    for (pid, parent) in [(10, ROOT), (11, 10)] {
        s.world.start(pid, parent);
    }
    let p = s.engage(10);
    s.world.start(12, 10);
    s.world.start(13, 12);
    let engaged = s.groups(10);
    assert_eq!(engaged.len(), 1);
    // Neither 12 nor 13 has been seen when their ancestor changes its set.
    s.ok(10, Call::Disengage(p, WHOLE));
    s.world.start(14, 10);
    assert!(s.groups(11).is_empty() && s.groups(10).is_empty() && s.groups(14).is_empty());
    assert_eq!((s.groups(12), s.groups(13)), (engaged.clone(), engaged.clone()));
    // They hold the group: it cannot be sealed until they let it go or end.
    let q = s.ok(10, Call::Create);
    let depend = Call::Depend { after: q, before: p };
    assert_eq!(s.fails(10, depend), Errno::BUSY);
    s.ok(12, Call::Disengage(p, WHOLE));
    assert_eq!(s.fails(10, depend), Errno::BUSY);
    s.world.end(13, ROOT);
    s.ok(10, depend);
    assert!(s.table.get(engaged[0]).unwrap().sealed);
}

#[test]
fn changes_of_a_child_are_its_own() {
    let s = setup();
    s.world.start(10, ROOT);
    let p = s.engage(10);
    s.world.start(11, 10);
    let mine = s.engage(11);
    assert_eq!((p, mine, s.groups(10).len(), s.groups(11).len()), (1, 2, 1, 2));
    s.ok(10, Call::Close(p));
    assert_eq!((s.groups(10).len(), s.groups(11).len()), (0, 2));
    s.ok(11, Call::Close(p));
    assert_eq!(s.table.len(), 1);
}

#[test]
fn threads_share_and_numbers_are_used_again() {
    let s = setup();
    s.world.start(10, ROOT);
    s.world.thread(10, 20);
    s.engage(20);
    assert_eq!(s.groups(10).len(), 1);
    assert_eq!(s.groups(10), s.groups(20));
    // The thread's number goes to another process, then the process's.
    s.world.end_thread(10, 20);
    s.world.start(20, ROOT);
    assert!(s.groups(20).is_empty());
    s.world.end(10, ROOT);
    s.world.tick();
    s.world.start(10, ROOT);
    assert!(s.groups(10).is_empty());
    s.scopes.sweep();
    assert_eq!((s.table.len(), s.scopes.count.all(), s.scopes.is_used()), (0, 0, false));
}

#[test]
fn adopted_processes_are_never_guessed() {
    let s = setup();
    s.world.start(10, ROOT);
    // 11 and 12 are seen by nobody while they belong together.
    let p = s.engage(10);
    s.world.start(11, 10);
    s.world.start(12, 11);
    s.world.end(11, 10);
    s.world.tick();
    // Adopted by the one that engaged: its set is the right one.
    assert_eq!(s.groups(12), s.groups(10));
    // Started elsewhere before the adopter changed its set.
    s.world.start(30, ROOT);
    s.world.start(31, 30);
    s.world.tick();
    s.ok(10, Call::Disengage(p, WHOLE));
    s.world.end(30, 10);
    assert_eq!(s.scopes.work(31, &[]).err().unwrap().errno(), Errno::AGAIN);
    assert_eq!(s.fails(31, Call::Create), Errno::AGAIN);
    // What comes after the change is clear, also within the same tick.
    s.world.start(32, 10);
    assert!(s.groups(32).is_empty());
}

#[test]
fn who_cannot_be_seen_is_refused() {
    let s = setup();
    s.world.start(10, ROOT);
    s.engage(10);
    s.world.hidden.lock().unwrap().insert(99);
    for tid in [0, 99] {
        assert_eq!(s.fails(tid, Call::Create), Errno::OPNOTSUPP);
        assert!(s.groups(tid).is_empty());
    }
}

#[test]
fn a_group_on_a_file_is_not_for_the_next_one_with_its_number() {
    let s = setup();
    s.world.start(10, ROOT);
    let (no, other) = (s.ok(10, Call::Create), s.ok(10, Call::Create));
    let file = About::File(InodeNo(7));
    s.ok(10, Call::Engage(no, file));
    s.ok(10, Call::Engage(other, file));
    let groups = || s.scopes.work(10, &[InodeNo(7)]).unwrap().groups().len();
    assert_eq!(groups(), 2);
    s.table.generation.fetch_add(1, Memory::Relaxed);
    assert_eq!(groups(), 0);
    s.ok(10, Call::Disengage(no, file));
    assert_eq!(s.table.get(s_id(&s, no)).unwrap().engaged, 0);
    s.ok(10, Call::Engage(other, file));
    assert_eq!(groups(), 1);
}

#[test]
fn a_group_on_a_file_is_for_that_file() {
    let s = setup();
    s.world.start(10, ROOT);
    let no = s.ok(10, Call::Create);
    let file = About::File(InodeNo(7));
    s.ok(10, Call::Engage(no, file));
    let on = |inodes: &[InodeNo]| s.scopes.work(10, inodes).unwrap().groups().len();
    assert_eq!((on(&[InodeNo(7)]), on(&[InodeNo(8)]), on(&[InodeNo(8), InodeNo(7)])), (1, 0, 1));
    assert_eq!(s.fails(10, Call::Engage(no, file)), Errno::BUSY);
    s.ok(10, Call::Engage(no, WHOLE));
    assert_eq!((on(&[InodeNo(7)]), on(&[InodeNo(8)])), (1, 1));
    s.ok(10, Call::Disengage(no, file));
    assert_eq!(s.fails(10, Call::Disengage(no, file)), Errno::INVAL);
    s.ok(10, Call::Disengage(no, WHOLE));
    assert_eq!((on(&[InodeNo(7)]), s.table.get(s_id(&s, no)).unwrap().engaged), (0, 0));
}

/// The file system's name for a number of process 10.
fn s_id(s: &Setup, no: u32) -> GroupId {
    let Ok(Found::Scoped(scope)) = s.scopes.find(10) else { panic!("it has a scope") };
    scope.set().id(no).unwrap()
}

#[test]
fn a_request_keeps_what_it_began_with() {
    let s = setup();
    s.world.start(10, ROOT);
    let p = s.engage(10);
    let q = s.ok(10, Call::Create);
    let work = s.scopes.work(10, &[]).unwrap();
    s.ok(10, Call::Disengage(p, WHOLE));
    assert!(s.groups(10).is_empty() && work.groups().len() == 1);
    assert_eq!(s.fails(10, Call::Depend { after: q, before: p }), Errno::BUSY);
    // Also when the process is gone.
    s.world.end(10, ROOT);
    s.scopes.sweep();
    assert_eq!(s.table.len(), 2);
    drop(work);
    assert_eq!(s.table.len(), 0);
}

#[test]
fn limits_hold() {
    let s = setup();
    s.world.start(10, ROOT);
    let all: Vec<u32> = (0..GROUPS_MAX).map(|_| s.ok(10, Call::Create)).collect();
    assert_eq!(s.fails(10, Call::Create), Errno::MFILE);
    for no in &all[..GROUPS_ENGAGED_MAX] {
        s.ok(10, Call::Engage(*no, WHOLE));
    }
    assert_eq!(s.fails(10, Call::Engage(all[GROUPS_ENGAGED_MAX], WHOLE)), Errno::MFILE);
    s.ok(10, Call::Close(5));
    assert_eq!(s.ok(10, Call::Create), 5);
    // A user's processes: the first is 10.
    for pid in 100..99 + u32::try_from(SCOPES_USER_MAX).unwrap() {
        s.world.start(pid, 10);
        assert_eq!(s.groups(pid).len(), GROUPS_ENGAGED_MAX - 1);
    }
    s.world.start(5000, 10);
    assert_eq!(s.scopes.work(5000, &[]).err().unwrap().errno(), Errno::NFILE);
    assert_eq!(s.table.len(), GROUPS_MAX);
    // Others are not touched, and everything is given back.
    s.world.start(6000, ROOT);
    assert!(s.groups(6000).is_empty());
    s.scopes.call(Asker { tid: 6000, uid: 2000 }, Call::Create).unwrap();
    s.scopes.close();
    assert_eq!((s.table.len(), s.scopes.count.all()), (0, 0));
}

fn order(durable_every_ms: u32) -> Call {
    Call::OrderBegin { durable_every_ms, every_change: false }
}

#[test]
fn every_change_may_be_an_ordering_point() {
    let s = setup();
    s.world.start(10, ROOT);
    s.ok(10, Call::OrderBegin { durable_every_ms: 0, every_change: true });
    let first = s.groups(10);
    let second = s.groups(10);
    assert_eq!(s.table.get(second[0]).unwrap().after, first, "the second change comes after the first");
    // Two that are under way together share a group, and the next one comes after both.
    let work = s.scopes.work(10, &[]).unwrap();
    let third = work.run(|| {
        assert_eq!(s.groups(10), work.groups());
        s.groups(10)
    });
    assert_eq!(s.table.get(third[0]).unwrap().after, second);
    assert_eq!(s.table.get(s.groups(10)[0]).unwrap().after, third);
    assert_eq!(s.table.syncs.load(Memory::Relaxed), 0);
}

#[test]
fn ordering_points_chain_groups() {
    let s = setup();
    s.world.start(10, ROOT);
    s.ok(10, order(0));
    assert_eq!(s.fails(10, order(0)), Errno::BUSY);
    assert_eq!(s.fails(10, order(9)), Errno::INVAL);
    s.world.start(11, 10);
    assert_eq!(s.fails(11, order(0)), Errno::BUSY);
    let point = |tid| s.scopes.order_of(tid).unwrap().unwrap();
    let first = s.groups(10);
    assert_eq!(first, s.groups(11));
    point(11).try_point().unwrap().unwrap();
    let second = s.groups(10);
    assert_eq!(s.table.get(second[0]).unwrap().after, first);
    // The earlier group is closed, and nothing was waited for.
    assert_eq!((s.table.len(), s.table.syncs.load(Memory::Relaxed)), (1, 0));
    // Nothing changed since the last point: there is nothing to order.
    point(10).try_point().unwrap().unwrap();
    let calls = s.table.calls.lock().unwrap().len();
    point(10).try_point().unwrap().unwrap();
    assert_eq!(s.table.calls.lock().unwrap().len(), calls);
    assert_eq!(s.scopes.users(), [(10, None), (11, None)]);
    s.ok(10, Call::OrderEnd);
    assert_eq!(s.fails(10, Call::OrderEnd), Errno::INVAL);
    assert!(s.scopes.order_of(10).unwrap().is_none() && s.groups(10).is_empty() && s.groups(11).len() == 1);
    s.world.end(11, ROOT);
    s.scopes.sweep();
    assert_eq!(s.table.len(), 0);
}

#[test]
fn an_ordering_point_that_cannot_be_made_is_durable() {
    let s = setup();
    s.world.start(10, ROOT);
    s.ok(10, order(0));
    let order = s.scopes.order_of(10).unwrap().unwrap();
    // A change is under way for longer than anybody waits.
    s.scopes.work(10, &[]).unwrap().run(|| {
        assert!(order.try_point().is_none());
        order.point().unwrap();
    });
    assert_eq!(s.table.syncs.load(Memory::Relaxed), 1);
    order.point().unwrap();
    assert_eq!(s.table.syncs.load(Memory::Relaxed), 1);
    // The file system refuses the next group: plain fsync from then on.
    s.groups(10);
    s.table.refuses.store(true, Memory::Relaxed);
    order.point().unwrap();
    s.table.refuses.store(false, Memory::Relaxed);
    s.groups(10);
    order.point().unwrap();
    assert_eq!((s.table.syncs.load(Memory::Relaxed), s.groups(10).len()), (3, 0));
}

#[test]
fn an_ordering_point_that_would_have_to_wait_is_made_elsewhere() {
    let s = setup();
    s.world.start(10, ROOT);
    s.ok(10, order(0));
    let first = s.groups(10);
    let order = s.scopes.order_of(10).unwrap().unwrap();
    let calls = s.table.calls.lock().unwrap().len();
    s.table.waits.store(true, Memory::Relaxed);
    {
        let _refuses = waiting::refuse();
        assert!(order.try_point().is_none());
        assert_eq!(s.groups(10), first, "nothing has happened");
        assert_eq!(s.table.calls.lock().unwrap().len(), calls);
    }
    order.point().unwrap();
    let second = s.groups(10);
    assert_eq!(s.table.get(second[0]).unwrap().after, first);
    assert_eq!((s.table.len(), s.table.syncs.load(Memory::Relaxed)), (1, 0));
}

#[test]
fn an_order_of_every_change_waits_before_it() {
    let s = setup();
    s.world.start(10, ROOT);
    s.ok(10, Call::OrderBegin { durable_every_ms: 0, every_change: true });
    let first = s.groups(10);
    s.table.waits.store(true, Memory::Relaxed);
    let _refuses = waiting::refuse();
    assert_eq!(s.table.get(s.groups(10)[0]).unwrap().after, first);
    assert_eq!(s.table.syncs.load(Memory::Relaxed), 0);
}

#[test]
fn everybody_can_be_ordered() {
    let s = setup();
    s.world.start(10, ROOT);
    s.scopes.order_everybody(None).unwrap();
    assert!(s.groups(10).len() == 1 && s.groups(0) == s.groups(10));
    assert_eq!(s.fails(10, order(0)), Errno::BUSY);
    s.scopes.order_of(0).unwrap().unwrap().try_point().unwrap().unwrap();
    assert!(s.scopes.orders_everybody() && s.scopes.users().is_empty());
    s.scopes.close();
    assert_eq!(s.table.len(), 0);
}

#[test]
fn pages_without_an_owner_belong_to_every_order() {
    let s = setup();
    for pid in [10, 20] {
        s.world.start(pid, ROOT);
        s.ok(pid, order(0));
    }
    let (one, other) = (s.groups(10), s.groups(20));
    let mut both = [one, other].concat();
    let mut all = s.scopes.work_for_all().groups();
    both.sort();
    all.sort();
    assert_eq!(all, both);
}

#[test]
fn orders_become_durable_in_time() {
    let s = setup();
    s.world.start(10, ROOT);
    s.ok(10, order(10));
    s.groups(10);
    let order = s.scopes.chains().pop().unwrap();
    // The watching thread makes it stable; no more is asked than that it happens.
    while order.is_unstable() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(s.table.syncs.load(Memory::Relaxed) >= 1);
    s.scopes.close();
}
