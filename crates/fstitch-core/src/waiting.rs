//! Telling who runs a thread that it is about to wait, or not waiting at all.
//!
//! A thread that answers many people's requests must not wait for room, or for the end of somebody's operation, while others
//! ask for what could be answered at once. It cannot know beforehand which request will wait. There are two ways out:
//!
//! - **Watched threads.** Whoever is about to wait says so here ([`Waiting::begin`]), and whoever runs such threads has another
//!   one take over meanwhile ([`watch`]).
//! - **Threads that refuse** ([`refuse`]), because nobody can take over. Whoever would have to wait there, has changed nothing
//!   and would keep nothing answers [`Error::WouldWait`] instead ([`Waiting::ask`]), and whoever runs the thread has the same
//!   operation done from its beginning by one that may wait. In the middle of a change it waits all the same.
//!
//! Other threads pay nothing, and those of either kind only where waiting begins.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;

use crate::{Error, Result};

/// Is told when a thread that it watches waits. Called with locks held: it must not wait itself.
pub trait Watcher: Send + Sync {
    /// The thread is about to wait.
    fn begins(&self);
    /// It goes on.
    fn ends(&self);
}

thread_local! {
    static WATCHER: RefCell<Option<Arc<dyn Watcher>>> = const { RefCell::new(None) };
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

/// Has this thread watched from now on, to its end.
pub fn watch(watcher: Arc<dyn Watcher>) {
    WATCHER.with_borrow_mut(|place| *place = Some(watcher));
}

/// This thread waits, as long as this lives; one in another says nothing new.
pub struct Waiting {
    watcher: Option<Arc<dyn Watcher>>,
    /// The watcher is this thread's.
    _not_send: PhantomData<*const ()>,
}

impl Waiting {
    /// To be made just before waiting.
    #[must_use]
    pub fn begin() -> Self {
        let watcher = WATCHER.with_borrow_mut(Option::take);
        if let Some(watcher) = &watcher {
            watcher.begins();
        }
        Self { watcher, _not_send: PhantomData }
    }

    /// The same for who has changed nothing and holds nothing that outlives the answer.
    ///
    /// # Errors
    /// [`Error::WouldWait`] on a thread that refuses to wait.
    pub fn ask() -> Result<Self> {
        ask()?;
        Ok(Self::begin())
    }
}

/// Whether this thread may wait, for who has changed nothing and is about to.
///
/// # Errors
/// [`Error::WouldWait`] if it refuses to.
pub fn ask() -> Result<()> {
    if refuses() { Err(Error::WouldWait) } else { Ok(()) }
}

/// Whether this thread refuses to wait.
#[must_use]
pub fn refuses() -> bool {
    REFUSES.get()
}

/// Whether this thread serves many, so that it is watched or refuses to wait.
#[must_use]
pub fn serves_many() -> bool {
    refuses() || WATCHER.with_borrow(Option::is_some)
}

/// This thread refuses to wait, or does not, as long as this lives.
#[derive(Debug)]
pub struct Manner {
    before: bool,
    _not_send: PhantomData<*const ()>,
}

impl Manner {
    fn enter(refuses: bool) -> Self {
        Self { before: REFUSES.replace(refuses), _not_send: PhantomData }
    }
}

impl Drop for Manner {
    fn drop(&mut self) {
        REFUSES.set(self.before);
    }
}

/// Has this thread refuse to wait.
#[must_use]
pub fn refuse() -> Manner {
    Manner::enter(true)
}

/// Has this thread wait although it refuses otherwise: in the middle of a change of which no part can be taken back.
#[must_use]
pub fn allow() -> Manner {
    Manner::enter(false)
}

#[cfg(debug_assertions)]
thread_local! {
    static CHANGES: Cell<u64> = const { Cell::new(0) };
}

/// Says, in debug builds, that this thread has changed what a file system keeps.
pub fn note_change() {
    #[cfg(debug_assertions)]
    CHANGES.set(CHANGES.get() + 1);
}

/// Does an operation that may refuse to wait, and checks in debug builds that it has then changed nothing and holds no lock.
///
/// # Errors
/// Those of the operation.
///
/// # Panics
/// In debug builds, if it refuses and has.
pub fn checked<T>(operation: impl FnOnce() -> Result<T>) -> Result<T> {
    #[cfg(debug_assertions)]
    let before = CHANGES.get();
    let done = operation();
    #[cfg(debug_assertions)]
    if matches!(done, Err(Error::WouldWait)) {
        crate::order::assert_below(crate::order::Rank::Gate, "refusing to wait");
        assert_eq!(before, CHANGES.get(), "refusing to wait after a change");
    }
    done
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.ends();
            watch(watcher);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicI32, AtomicI32);

    impl Watcher for Count {
        fn begins(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.fetch_add(1, Ordering::Relaxed);
        }

        fn ends(&self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_thread_refuses_until_it_is_told_otherwise() {
        assert!(ask().is_ok() && Waiting::ask().is_ok());
        let refusing = refuse();
        assert!(serves_many() && refuses());
        assert!(matches!(ask(), Err(Error::WouldWait)) && Waiting::ask().is_err());
        {
            let _in_the_middle_of_a_change = allow();
            assert!(ask().is_ok());
        }
        assert!(ask().is_err());
        std::thread::scope(|scope| scope.spawn(|| assert!(!refuses())).join().unwrap());
        drop(refusing);
        assert!(ask().is_ok());
    }

    #[test]
    fn what_was_refused_asks_no_watcher() {
        let count = Arc::new(Count::default());
        assert!(!serves_many());
        watch(Arc::clone(&count) as _);
        assert!(serves_many(), "it is watched");
        let _refusing = refuse();
        assert!(Waiting::ask().is_err());
        assert_eq!(count.1.load(Ordering::Relaxed), 0);
        drop(Waiting::begin());
        assert_eq!(count.1.load(Ordering::Relaxed), 1, "in the middle of a change it waits all the same");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "refusing to wait after a change")]
    fn a_refusal_after_a_change_is_found() {
        let _refusing = refuse();
        let _refused = checked(|| {
            note_change();
            ask()
        });
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "refusing to wait while a lock of rank Some(Writer) is held")]
    fn a_refusal_that_keeps_a_lock_is_found() {
        let _refusing = refuse();
        let writer = crate::lock::Mutex::<(), crate::order::rank::Writer>::new(());
        let mut kept = None;
        let _refused = checked(|| {
            kept = Some(writer.lock());
            ask()
        });
    }

    #[test]
    fn waits_within_waits_are_told_once() {
        let count = Arc::new(Count::default());
        let of = |count: &Count| (count.0.load(Ordering::Relaxed), count.1.load(Ordering::Relaxed));
        drop(Waiting::begin());
        assert_eq!(of(&count), (0, 0), "nobody watches");
        watch(Arc::clone(&count) as _);
        {
            let _outer = Waiting::begin();
            let _inner = Waiting::begin();
            assert_eq!(of(&count), (1, 1));
        }
        assert_eq!(of(&count), (0, 1));
        drop(Waiting::begin());
        assert_eq!(of(&count), (0, 2));
    }
}
