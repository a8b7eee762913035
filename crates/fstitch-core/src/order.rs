//! The order of locks, checked in debug builds; nothing at all in release builds.

/// Kinds of locks, in the order in which a thread may take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The gate of a file system: shared by changes, exclusive for who wants none under way. Taken before anything else,
    /// and once: a second time would wait for ever behind somebody who waits for it exclusively.
    Gate,
    /// A file's lock for changes of its length or blocks in several steps.
    Writer,
    /// A file system's lock for moves between directories.
    Renames,
    /// An inode's lock. Several may be held; their own order is the file system's business.
    Inode,
    /// An allocation group's lock.
    Group,
    /// The core lock of the patch graph and cache index: taken last, held for microseconds, never across I/O.
    Core,
}

/// Says that this thread holds a lock of some rank, as long as it lives. Keep it beside the lock's guard.
#[derive(Debug)]
pub struct Ranked {
    #[cfg(debug_assertions)]
    rank: Rank,
    /// Lock guards stay on their thread, and so does this.
    _not_send: std::marker::PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::RefCell<Vec<Rank>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl Ranked {
    /// To be called before the lock is taken.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock that comes later, or another one of the same rank where only
    /// inodes may have several.
    #[must_use]
    pub fn enter(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| {
            if let Some(&highest) = held.iter().max() {
                let lawful = highest < rank || (highest == rank && rank == Rank::Inode);
                assert!(lawful, "a lock of rank {rank:?} is taken while one of rank {highest:?} is held");
            }
            held.push(rank);
        });
        Self::new(rank)
    }

    /// The same for a lock that is tried without waiting, which may be out of order: nobody waits for anybody then.
    #[must_use]
    pub fn attempt(rank: Rank) -> Self {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| held.push(rank));
        Self::new(rank)
    }

    fn new(rank: Rank) -> Self {
        let _ = rank;
        Self {
            #[cfg(debug_assertions)]
            rank,
            _not_send: std::marker::PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Ranked {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            let at = held.iter().rposition(|&rank| rank == self.rank);
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
    use super::*;

    #[test]
    fn the_order_is_lawful_both_ways_down_and_up() {
        let _inode = Ranked::enter(Rank::Inode);
        let _another = Ranked::enter(Rank::Inode);
        {
            let _group = Ranked::enter(Rank::Group);
            let _core = Ranked::enter(Rank::Core);
        }
        let _group = Ranked::enter(Rank::Group);
        assert_below(Rank::Core, "reading");
    }

    #[test]
    #[should_panic(expected = "rank Gate is taken while one of rank Writer is held")]
    fn the_gate_behind_a_writer_is_found() {
        let _writer = Ranked::enter(Rank::Writer);
        let _gate = Ranked::enter(Rank::Gate);
    }

    #[test]
    #[should_panic(expected = "rank Gate is taken while one of rank Gate is held")]
    fn the_gate_twice_is_found() {
        let _gate = Ranked::enter(Rank::Gate);
        let _again = Ranked::enter(Rank::Gate);
    }

    #[test]
    fn a_lock_that_is_only_tried_may_be_out_of_order() {
        let _inode = Ranked::enter(Rank::Inode);
        let _writer = Ranked::attempt(Rank::Writer);
        let _group = Ranked::enter(Rank::Group);
    }

    #[test]
    #[should_panic(expected = "rank Inode is taken while one of rank Core is held")]
    fn an_inode_lock_under_the_core_lock_is_found() {
        let _core = Ranked::enter(Rank::Core);
        let _inode = Ranked::enter(Rank::Inode);
    }

    #[test]
    fn below_the_order_begins_anew() {
        let _group = Ranked::enter(Rank::Group);
        {
            let _below = Below::enter();
            assert_below(Rank::Inode, "waiting");
            let _inode = Ranked::enter(Rank::Inode);
        }
        let _core = Ranked::enter(Rank::Core);
    }

    #[test]
    #[should_panic(expected = "waiting while a lock of rank Some(Inode) is held")]
    fn waiting_with_a_lock_is_found() {
        let _inode = Ranked::enter(Rank::Inode);
        assert_below(Rank::Inode, "waiting");
    }
}
