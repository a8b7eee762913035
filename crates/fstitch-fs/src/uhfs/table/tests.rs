//! Tests of the table alone, over a format whose inodes are numbers.

use std::cell::Cell;

use fstitch_core::{Errno, InodeId};

use super::*;

/// Nodes of a format whose inodes are numbers.
fn load(ino: InodeNo) -> impl Fn() -> Result<(u64, bool)> {
    move || Ok((ino.get(), false))
}

/// Ends enough operations for every node to leave that may.
fn evict_all(table: &Table<u64>, stable: impl Fn(&State<u64>) -> bool) {
    for _ in 0..1000 {
        table.evict(&stable);
    }
}

#[test]
fn references_survive_the_node() {
    let table = Table::new(4);
    for ino in (1..=100).map(InodeNo) {
        table.get(ino, 2, load(ino)).unwrap();
    }
    evict_all(&table, |_| true);
    assert_eq!(table.population(), Population { nodes: 4, parked: 96 });
    for ino in (1..=100).map(InodeNo) {
        assert!(table.release(ino, 1).is_none(), "one reference is left");
    }
    for ino in (1..=100).map(InodeNo) {
        let node = table.get(ino, 0, load(ino)).unwrap();
        assert_eq!(node.refs.load(Ordering::Relaxed), 1);
        assert!(table.release(ino, 1).is_some(), "a node's last reference is told");
    }
    evict_all(&table, |_| true);
    assert_eq!(table.population(), Population { nodes: 4, parked: 0 });
}

#[test]
fn what_is_needed_stays() {
    let table = Table::new(0);
    let held = table.get(InodeNo(1), 1, load(InodeNo(1))).unwrap();
    table.get(InodeNo(2), 0, load(InodeNo(2))).unwrap().orphan.store(true, Ordering::Relaxed);
    table.get(InodeNo(3), 1, load(InodeNo(3))).unwrap();
    table.get(InodeNo(4), 1, load(InodeNo(4))).unwrap();
    evict_all(&table, |state| *state.inode() != 3);
    assert_eq!(table.population(), Population { nodes: 3, parked: 1 });
    assert!(!table.forget_idle(InodeNo(4)), "somebody refers to it");
    drop(held);
    evict_all(&table, |_| true);
    assert_eq!(table.population(), Population { nodes: 1, parked: 3 });
}

/// A table of nodes that were loaded and are held by nobody, with `refs` references each.
fn crowd(nodes_max: usize, count: u64, refs: u64) -> Table<u64> {
    let table = Table::new(nodes_max);
    for ino in (1..=count).map(InodeNo) {
        table.get(ino, refs, load(ino)).unwrap();
    }
    table
}

#[test]
fn older_nodes_leave_at_once_and_younger_ones_stay() {
    let table = crowd(4, 1000, 2);
    let last = table.last_ticket();
    for ino in (1001..=1010).map(InodeNo) {
        table.get(ino, 0, load(ino)).unwrap();
    }
    assert_eq!(table.evict_older(last, 10, |_| true), Evicted { left: 10, may_be_more: true });
    assert_eq!(table.evict_older(last, usize::MAX, |_| true), Evicted { left: 990, may_be_more: false });
    assert_eq!(table.population(), Population { nodes: 10, parked: 1000 });
    let last = table.last_ticket();
    assert_eq!(table.evict_older(last, usize::MAX, |_| true), Evicted { left: 6, may_be_more: false });
    assert_eq!(table.population(), Population { nodes: 4, parked: 1000 });
    assert!(table.release(InodeNo(7), 1).is_none() && table.release(InodeNo(7), 1).is_none());
    assert_eq!(table.population(), Population { nodes: 4, parked: 999 });
}

#[test]
fn what_is_needed_stays_whoever_looks() {
    let table = crowd(0, 100, 1);
    let held = table.get(InodeNo(1), 0, load(InodeNo(1))).unwrap();
    table.get(InodeNo(2), 0, load(InodeNo(2))).unwrap().orphan.store(true, Ordering::Relaxed);
    table.get(InodeNo(3), 0, load(InodeNo(3))).unwrap().used.store(true, Ordering::Relaxed);
    let locked = table.get(InodeNo(4), 0, load(InodeNo(4))).unwrap();
    let _state = locked.write().unwrap();
    let evicted = table.evict_older(table.last_ticket(), usize::MAX, |state| *state.inode() != 5);
    assert_eq!(evicted, Evicted { left: 95, may_be_more: false });
    assert_eq!(table.population(), Population { nodes: 5, parked: 95 });
    drop(held);
    // The first looks have taken a second chance away, and the lock keeps one more.
    let evicted = table.evict_older(table.last_ticket(), usize::MAX, |_| true);
    assert_eq!(evicted, Evicted { left: 3, may_be_more: false });
}

#[test]
fn a_crowd_that_has_to_stay_is_not_looked_through() {
    let table = crowd(4, 1000, 0);
    let looks = Cell::new(0);
    let evicted = table.evict_older(table.last_ticket(), usize::MAX, |_| {
        looks.set(looks.get() + 1);
        false
    });
    assert_eq!(evicted, Evicted::default());
    assert_eq!(looks.get(), STAYS_MAX + 1);
}

#[test]
fn a_crowd_leaves_no_room_behind() {
    let table = crowd(4, 10_000, 1);
    let room = |table: &Table<u64>| {
        let shards = table.shards.iter().map(|shard| shard.lock().nodes.capacity()).sum::<usize>();
        shards + table.queue.lock().nodes.capacity()
    };
    let before = room(&table);
    table.evict_older(table.last_ticket(), usize::MAX, |_| true);
    assert!(room(&table) < before / 10, "{} of {before}", room(&table));
}

#[test]
fn references_add_up_while_nodes_leave() {
    let table = crowd(4, 64, 1);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for ino in (0..64 * 300).map(|round| InodeNo(1 + round % 64)) {
                    table.get(ino, 2, load(ino)).unwrap();
                    assert!(table.release(ino, 1).is_none());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20_000 {
                table.evict_older(table.last_ticket(), usize::MAX, |_| true);
            }
        });
    });
    table.evict_older(table.last_ticket(), usize::MAX, |_| true);
    assert_eq!(table.population(), Population { nodes: 4, parked: 60 });
    for ino in (1..=64).map(InodeNo) {
        let node = table.get(ino, 0, load(ino)).unwrap();
        assert_eq!(node.refs.load(Ordering::Relaxed), 1 + 2 * 300);
    }
}

#[test]
fn a_failure_to_load_loses_no_reference() {
    let table = Table::new(0);
    table.get(InodeNo(1), 3, load(InodeNo(1))).unwrap();
    evict_all(&table, |_| true);
    let failing = || Err(Errno::IO.into());
    assert!(table.get(InodeNo(1), 1, failing).is_err());
    assert!(table.get(InodeNo(2), 1, failing).is_err());
    assert_eq!(table.population(), Population { nodes: 0, parked: 1 });
    let node = table.get(InodeNo(1), 1, load(InodeNo(1))).unwrap();
    assert_eq!(node.refs.load(Ordering::Relaxed), 4);
}

/// A directory that somebody remembers.
const DIRECTORY: InodeId = InodeId { ino: InodeNo(7), generation: 3 };

/// Somebody asks for a remembered number that was freed, and while the format looks, the number gets a new life.
#[test]
fn a_look_at_a_former_life_leaves_the_new_one_alone() {
    let table = Table::new(0);
    let mut made = None;
    let asked = {
        let born = std::cell::RefCell::new(&mut made);
        table.get(InodeNo(5), 0, || {
            **born.borrow_mut() = Some(table.insert(InodeNo(5), State::loaded(77, false)));
            Err(Errno::STALE.into())
        })
    };
    assert!(asked.is_err(), "the life that was asked for is over");
    let made = made.unwrap();
    assert_eq!(table.population(), Population { nodes: 1, parked: 0 });
    let again = table.get(InodeNo(5), 0, load(InodeNo(5))).unwrap();
    assert!(Arc::ptr_eq(&again, &made) && made.refs.load(Ordering::Relaxed) == 1);
}

/// As above, where the look finds the new inode before its maker has entered it.
#[test]
fn one_number_has_one_node() {
    let table = Table::new(0);
    let found = table.get(InodeNo(5), 2, || {
        if table.population().nodes == 1 && table.last_ticket() == 1 {
            table.insert(InodeNo(5), State::loaded(77, false));
        }
        Ok((5, false))
    });
    let found = found.unwrap();
    assert_eq!(*found.read().unwrap().inode(), 77);
    assert_eq!(found.refs.load(Ordering::Relaxed), 3, "the maker's and ours");
}

#[test]
fn whereabouts_survive_the_node() {
    let table = Table::new(0);
    let node = table.get(InodeNo(1), 1, load(InodeNo(1))).unwrap();
    {
        let mut state = node.write().unwrap();
        state.track.named_in(DIRECTORY);
        state.track.set_stable(3);
    }
    drop(node);
    evict_all(&table, |_| true);
    let loads = Cell::new(0);
    let node = table.get(InodeNo(1), 0, || {
        loads.set(loads.get() + 1);
        load(InodeNo(1))()
    });
    let node = node.unwrap();
    let state = node.read().unwrap();
    assert_eq!(loads.get(), 1);
    assert_eq!(state.track.parents.as_slice(), [DIRECTORY]);
    assert!(state.track.is_stable(3) && !state.track.is_stable(4));
}

#[test]
fn numbers_that_are_used_again_do_not_fill_the_queue() {
    let table = Table::new(4);
    for life in 0..1000 {
        let node = table.insert(InodeNo(5), State::loaded(life, false));
        table.evict(|_| false);
        table.remove(&node);
    }
    assert!(table.queue.lock().nodes.len() <= 5);
}
