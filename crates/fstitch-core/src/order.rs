//! The order of locks, checked in debug builds; nothing at all in release builds.
//!
//! A lock has its rank in its type ([`lock`](crate::lock)), so that no lock can be without one.

use crate::lock::Place;

/// What a lock's type says of it.
pub trait HasRank {
    /// Its place in the order.
    const RANK: Rank;
    /// It is held across I/O or other people's operations: whoever is about to wait for it says so
    /// ([`waiting`](crate::waiting)).
    const LONG: bool;
}

/// The ranks in order, as values and as the types that locks carry.
macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident, $long:literal;)*) => {
        /// Kinds of locks, in the order in which a thread may take them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rank {
            $($(#[$doc])* $name,)*
        }

        impl Rank {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }

        /// The ranks as types: what a lock carries.
        pub mod rank {
            $(
                $(#[$doc])*
                #[derive(Clone, Copy, Debug)]
                pub struct $name;

                impl super::HasRank for $name {
                    const RANK: super::Rank = super::Rank::$name;
                    const LONG: bool = $long;
                }
            )*
        }
    };
}

ranks! {
    /// The right to run the reclaimer.
    Reclaim, true;
    /// The gate of a file system: shared by changes, exclusive for who wants none under way. Taken before all that changes
    /// take, and once: a second time would wait for ever behind somebody who waits for it exclusively.
    Gate, true;
    /// The lock of who marks a volume as in use.
    Marking, true;
    /// A file's lock for changes of its length or blocks in several steps.
    Writer, true;
    /// A file system's lock for moves between directories.
    Renames, true;
    /// An inode's lock, or that of its loading. Several may be held; their own order is the file system's business.
    Inode, false;
    /// A shard of the table of inodes.
    Shard, false;
    /// The queue of inodes that may leave memory.
    Queue, false;
    /// What is remembered of a directory: where its names are. Several may be held, under their inodes' locks.
    Names, false;
    /// The list of directories with an index.
    Indexes, false;
    /// The list of inodes that are to be freed.
    Orphans, false;
    /// The files with the usage of users, groups and projects.
    Quota, false;
    /// The right to give back what was preallocated.
    Giving, false;
    /// An allocation group's lock.
    Group, false;
    /// Tables that a format keeps beside the cache, one at a time: held for moments, and only the core lock is taken inside.
    Table, false;
    /// The right to fill a hole of a file that a volume is in: the file system below goes on under it.
    Filling, true;
    /// The right to write an epoch, held across I/O.
    Epoch, false;
    /// The place of who looks on at a cache, held while he is told. Never waited for.
    Seat, false;
    /// The core lock of the patch graph and cache index: held for microseconds, never across I/O.
    Core, false;
    /// What is looked up or noted at any place: nothing is taken inside.
    Leaf, false;
}

impl Rank {
    /// Whether a thread that holds a lock of this rank, and none that comes later, may wait for one of `next`.
    #[must_use]
    pub fn may_precede(self, next: Self) -> bool {
        self < next || (self == next && matches!(self, Self::Inode | Self::Names))
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Says that this thread holds a lock, as long as it lives: a lock's guard has one.
#[derive(Debug)]
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    place: Place,
    /// Lock guards stay on their thread, and so does this.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Held {
    /// To be called before the lock is taken.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock that comes later, or another one of the same rank where only
    /// some may have several.
    #[track_caller]
    pub(crate) fn enter(place: Place) -> Self {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| {
            if let Some(&highest) = held.iter().max() {
                let rank = place.rank;
                let lawful = highest.may_precede(rank);
                assert!(lawful, "a lock of rank {rank:?} is taken while one of rank {highest:?} is held");
            }
            held.push(place.rank);
        });
        Self::new(place)
    }

    /// The same for a lock that is tried without waiting, which may be out of order: nobody waits for anybody then.
    pub(crate) fn attempt(place: Place) -> Self {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| held.push(place.rank));
        Self::new(place)
    }

    fn new(place: Place) -> Self {
        let _ = place;
        Self {
            #[cfg(debug_assertions)]
            place,
            _not_send: std::marker::PhantomData,
        }
    }

    #[cfg(debug_assertions)]
    pub(crate) fn place(&self) -> Place {
        self.place
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            let at = held.iter().rposition(|&rank| rank == self.place.rank);
            held.remove(at.expect("every rank that is left was entered"));
        });
    }
}

/// As long as it lives, this thread goes on in a file system below the one whose locks it holds: there the order begins
/// anew. Nobody in a file system below waits for one above.
#[derive(Debug)]
pub struct Below {
    #[cfg(debug_assertions)]
    above: Vec<Rank>,
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Below {
    /// Goes down.
    ///
    /// # Panics
    /// In debug builds, if this thread holds the core lock, which file systems on one device share.
    #[must_use]
    pub fn enter() -> Self {
        assert_below(Rank::Core, "entering the file system below");
        Self {
            #[cfg(debug_assertions)]
            above: HELD.take(),
            _not_send: std::marker::PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Below {
    fn drop(&mut self) {
        HELD.set(std::mem::take(&mut self.above));
    }
}

/// Checks in debug builds that this thread holds no lock of `rank` or later: before I/O with [`Rank::Core`], before
/// waiting for room with [`Rank::Inode`].
///
/// # Panics
/// In debug builds, if it does.
pub fn assert_below(rank: Rank, doing: &str) {
    #[cfg(debug_assertions)]
    HELD.with_borrow(|held| {
        let highest = held.iter().max();
        assert!(
            highest.is_none_or(|&highest| highest < rank),
            "{doing} while a lock of rank {highest:?} is held"
        );
    });
    let _ = (rank, doing);
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::lock::{Access, Mutex};

    fn enter(rank: Rank) -> Held {
        Held::enter(Place::nowhere(rank, Access::Exclusive))
    }

    #[test]
    fn the_order_is_lawful_both_ways_down_and_up() {
        let _inode = enter(Rank::Inode);
        let _another = enter(Rank::Inode);
        {
            let _group = enter(Rank::Group);
            let _core = enter(Rank::Core);
        }
        let _group = enter(Rank::Group);
        assert_below(Rank::Core, "reading");
    }

    /// Every pair: what the order allows is taken, and what it forbids panics and says which locks these are.
    #[test]
    fn every_wrong_order_panics() {
        for &first in Rank::ALL {
            for &second in Rank::ALL {
                let taken = catch_unwind(|| {
                    let _first = enter(first);
                    let _second = enter(second);
                });
                let lawful =
                    first < second || (first == second && matches!(first, Rank::Inode | Rank::Names));
                assert_eq!(taken.is_ok(), lawful, "{second:?} under {first:?}");
                let said = taken.err().and_then(|panic| panic.downcast::<String>().ok());
                let expected =
                    format!("a lock of rank {second:?} is taken while one of rank {first:?} is held");
                assert!(said.is_none_or(|said| *said == expected));
            }
        }
    }

    #[test]
    fn a_lock_asks_for_the_rank_of_its_type() {
        let (gate, writer) = (Mutex::<(), rank::Gate>::new(()), Mutex::<(), rank::Writer>::new(()));
        {
            let _gate = gate.lock();
            let _writer = writer.lock();
        }
        let _writer = writer.lock();
        let wrong = catch_unwind(AssertUnwindSafe(|| drop(gate.lock())));
        assert!(wrong.is_err(), "the gate behind a writer");
    }

    #[test]
    fn a_lock_that_is_only_tried_may_be_out_of_order() {
        let writer = Mutex::<(), rank::Writer>::new(());
        let _inode = enter(Rank::Inode);
        let _writer = writer.try_lock().expect("it is free");
        let _group = enter(Rank::Group);
    }

    #[test]
    fn below_the_order_begins_anew() {
        let _group = enter(Rank::Group);
        {
            let _below = Below::enter();
            assert_below(Rank::Inode, "waiting");
            let _inode = enter(Rank::Inode);
        }
        let _core = enter(Rank::Core);
    }

    #[test]
    #[should_panic(expected = "waiting while a lock of rank Some(Inode) is held")]
    fn waiting_with_a_lock_is_found() {
        let _inode = enter(Rank::Inode);
        assert_below(Rank::Inode, "waiting");
    }
}
