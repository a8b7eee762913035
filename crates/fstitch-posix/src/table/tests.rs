//! Tests of the table alone, over a file system whose inodes are numbers.

use std::cell::Cell;

use fstitch_core::Errno;
use fstitch_core::lock::RwLock;

use super::*;

/// A node of a file system whose inodes are numbers, each of which is kept when it leaves.
struct Number {
    header: Header,
    value: RwLock<u64, rank::Inode>,
    /// What was kept of the node before it.
    kept: u64,
}

impl Number {
    fn made(ino: InodeNo, value: u64) -> Self {
        Self { header: Header::made(ino), value: RwLock::new(value), kept: 0 }
    }

    fn refs(&self) -> u64 {
        self.header.refs()
    }
}

impl Node for Number {
    type Kept = u64;

    fn unloaded(header: Header, kept: u64) -> Self {
        Self { header, value: RwLock::new(0), kept }
    }

    fn header(&self) -> &Header {
        &self.header
    }

    fn kept(&self) -> u64 {
        self.kept
    }
}

fn load(node: &Number) -> Result<()> {
    *node.value.write() = node.header.ino.get();
    Ok(())
}

/// Lets a node go that nobody has locked, if `stable` says so.
fn leave(stable: impl Fn(u64) -> bool) -> impl Fn(&Number) -> Option<u64> {
    move |node| {
        let value = node.value.try_read()?;
        stable(*value).then_some(*value)
    }
}

/// Ends enough operations for every node to leave that may.
fn evict_all(table: &Table<Number>, stable: impl Fn(u64) -> bool) {
    let leave = leave(stable);
    for _ in 0..1000 {
        table.evict(&leave);
    }
}

#[test]
fn references_survive_the_node() {
    let table = Table::new(4);
    for ino in (1..=100).map(InodeNo) {
        table.get(ino, 2, load).unwrap();
    }
    evict_all(&table, |_| true);
    assert_eq!(table.population(), Population { nodes: 4, parked: 96 });
    for ino in (1..=100).map(InodeNo) {
        assert!(table.release(ino, 1).is_none(), "one reference is left");
    }
    for ino in (1..=100).map(InodeNo) {
        let node = table.get(ino, 0, load).unwrap();
        assert_eq!(node.refs(), 1);
        assert!(table.release(ino, 1).is_some(), "a node's last reference is told");
    }
    evict_all(&table, |_| true);
    assert_eq!(table.population(), Population { nodes: 4, parked: 0 });
}

#[test]
fn what_is_needed_stays() {
    let table = Table::new(0);
    let held = table.get(InodeNo(1), 1, load).unwrap();
    table.get(InodeNo(2), 0, load).unwrap().header.set_orphan(true);
    table.get(InodeNo(3), 1, load).unwrap();
    table.get(InodeNo(4), 1, load).unwrap();
    evict_all(&table, |value| value != 3);
    assert_eq!(table.population(), Population { nodes: 3, parked: 1 });
    assert!(!table.forget_idle(InodeNo(4)), "somebody refers to it");
    drop(held);
    evict_all(&table, |_| true);
    assert_eq!(table.population(), Population { nodes: 1, parked: 3 });
}

/// A table of nodes that were loaded and are held by nobody, with `refs` references each.
fn crowd(nodes_max: usize, count: u64, refs: u64) -> Table<Number> {
    let table = Table::new(nodes_max);
    for ino in (1..=count).map(InodeNo) {
        table.get(ino, refs, load).unwrap();
    }
    table
}

#[test]
fn older_nodes_leave_at_once_and_younger_ones_stay() {
    let table = crowd(4, 1000, 2);
    let last = table.last_ticket();
    for ino in (1001..=1010).map(InodeNo) {
        table.get(ino, 0, load).unwrap();
    }
    assert_eq!(table.evict_older(last, 10, leave(|_| true)), Evicted { left: 10, may_be_more: true });
    assert_eq!(
        table.evict_older(last, usize::MAX, leave(|_| true)),
        Evicted { left: 990, may_be_more: false }
    );
    assert_eq!(table.population(), Population { nodes: 10, parked: 1000 });
    let last = table.last_ticket();
    assert_eq!(table.evict_older(last, usize::MAX, leave(|_| true)), Evicted { left: 6, may_be_more: false });
    assert_eq!(table.population(), Population { nodes: 4, parked: 1000 });
    assert!(table.release(InodeNo(7), 1).is_none() && table.release(InodeNo(7), 1).is_none());
    assert_eq!(table.population(), Population { nodes: 4, parked: 999 });
}

#[test]
fn what_is_needed_stays_whoever_looks() {
    let table = crowd(0, 100, 1);
    let held = table.get(InodeNo(1), 0, load).unwrap();
    table.get(InodeNo(2), 0, load).unwrap().header.set_orphan(true);
    table.get(InodeNo(3), 0, load).unwrap().header.note_use();
    let locked = table.get(InodeNo(4), 0, load).unwrap();
    let _value = locked.value.write();
    let evicted = table.evict_older(table.last_ticket(), usize::MAX, leave(|value| value != 5));
    assert_eq!(evicted, Evicted { left: 95, may_be_more: false });
    assert_eq!(table.population(), Population { nodes: 5, parked: 95 });
    drop(held);
    // The first looks have taken a second chance away, and the lock keeps one more.
    let evicted = table.evict_older(table.last_ticket(), usize::MAX, leave(|_| true));
    assert_eq!(evicted, Evicted { left: 3, may_be_more: false });
}

#[test]
fn a_crowd_that_has_to_stay_is_not_looked_through() {
    let table = crowd(4, 1000, 0);
    let looks = Cell::new(0);
    let evicted = table.evict_older(table.last_ticket(), usize::MAX, |_| {
        looks.set(looks.get() + 1);
        None
    });
    assert_eq!(evicted, Evicted::default());
    assert_eq!(looks.get(), STAYS_MAX + 1);
}

#[test]
fn a_crowd_leaves_no_room_behind() {
    let table = crowd(4, 10_000, 1);
    let room = |table: &Table<Number>| {
        let shards = table.shards.iter().map(|shard| shard.lock().nodes.capacity()).sum::<usize>();
        shards + table.queue.lock().nodes.capacity()
    };
    let before = room(&table);
    table.evict_older(table.last_ticket(), usize::MAX, leave(|_| true));
    assert!(room(&table) < before / 10, "{} of {before}", room(&table));
}

#[test]
fn references_add_up_while_nodes_leave() {
    let table = crowd(4, 64, 1);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for ino in (0..64 * 300).map(|round| InodeNo(1 + round % 64)) {
                    table.get(ino, 2, load).unwrap();
                    assert!(table.release(ino, 1).is_none());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20_000 {
                table.evict_older(table.last_ticket(), usize::MAX, leave(|_| true));
            }
        });
    });
    table.evict_older(table.last_ticket(), usize::MAX, leave(|_| true));
    assert_eq!(table.population(), Population { nodes: 4, parked: 60 });
    for ino in (1..=64).map(InodeNo) {
        let node = table.get(ino, 0, load).unwrap();
        assert_eq!(node.refs(), 1 + 2 * 300);
    }
}

#[test]
fn a_failure_to_load_loses_no_reference() {
    let table = Table::new(0);
    table.get(InodeNo(1), 3, load).unwrap();
    evict_all(&table, |_| true);
    let failing = |_: &Number| Err(Errno::IO.into());
    assert!(table.get(InodeNo(1), 1, failing).is_err());
    assert!(table.get(InodeNo(2), 1, failing).is_err());
    assert_eq!(table.population(), Population { nodes: 0, parked: 1 });
    let node = table.get(InodeNo(1), 1, load).unwrap();
    assert_eq!(node.refs(), 4);
}

/// Somebody asks for a remembered number that was freed, and while the format looks, the number gets a new life.
#[test]
fn a_look_at_a_former_life_leaves_the_new_one_alone() {
    let table = Table::new(0);
    let mut made = None;
    let asked = {
        let born = std::cell::RefCell::new(&mut made);
        table.get(InodeNo(5), 0, |_| {
            **born.borrow_mut() = Some(table.insert(Arc::new(Number::made(InodeNo(5), 77))));
            Err(Errno::STALE.into())
        })
    };
    assert!(asked.is_err(), "the life that was asked for is over");
    let made = made.unwrap();
    assert_eq!(table.population(), Population { nodes: 1, parked: 0 });
    let again = table.get(InodeNo(5), 0, load).unwrap();
    assert!(Arc::ptr_eq(&again, &made) && made.refs() == 1);
}

/// As above, where the look finds the new inode before its maker has entered it.
#[test]
fn one_number_has_one_node() {
    let table = Table::new(0);
    let found = table.get(InodeNo(5), 2, |node| {
        if table.population().nodes == 1 && table.last_ticket() == 1 {
            table.insert(Arc::new(Number::made(InodeNo(5), 77)));
        }
        load(node)
    });
    let found = found.unwrap();
    assert_eq!(*found.value.read(), 77);
    assert_eq!(found.refs(), 3, "the maker's and ours");
}

#[test]
fn what_is_kept_survives_the_node() {
    let table = Table::new(0);
    table.get(InodeNo(9), 1, load).unwrap();
    evict_all(&table, |_| true);
    assert!(table.get(InodeNo(9), 0, |_| Err(Errno::IO.into())).is_err());
    let loads = Cell::new(0);
    let node = table.get(InodeNo(9), 0, |node| {
        loads.set(loads.get() + 1);
        load(node)
    });
    assert_eq!((node.unwrap().kept, loads.get()), (9, 1), "a failure to load loses nothing either");
}

#[test]
fn numbers_that_are_used_again_do_not_fill_the_queue() {
    let table = Table::new(4);
    for life in 0..1000 {
        let node = table.insert(Arc::new(Number::made(InodeNo(5), life)));
        table.evict(|_| None);
        table.remove(&node);
    }
    assert!(table.queue.lock().nodes.len() <= 5);
}

#[test]
fn an_orphan_is_claimed_once_and_only_when_nobody_refers_to_it() {
    let table = Table::new(0);
    let node = table.insert(Arc::new(Number::made(InodeNo(5), 0)));
    assert!(!table.claim_orphan(&node), "it has a name");
    node.header.set_orphan(true);
    assert!(!table.claim_orphan(&node) && !table.claim_unreferenced(&node), "somebody refers to it");
    let released = table.release(InodeNo(5), 1).unwrap();
    let claims: usize = std::thread::scope(|scope| {
        let claim = || scope.spawn(|| usize::from(table.claim_orphan(&released)));
        [claim(), claim(), claim()].into_iter().map(|claim| claim.join().unwrap()).sum()
    });
    assert_eq!(claims, 1);
    node.header.unclaim();
    assert!(node.header.claim_referred_orphan() && !table.claim_orphan(&node));
    table.remove(&node);
    assert_eq!(table.population(), Population { nodes: 0, parked: 0 });
}
