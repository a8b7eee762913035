//! Locks that know their place in the order: those of `std::sync`, with a rank in the type.
//!
//! Debug builds check the order of every lock that is waited for ([`order`](crate::order)) and hand over to other threads where a
//! laboratory wants that ([`schedule`](crate::schedule)). Release builds do what `std::sync` does. A panic under a lock is a bug:
//! whoever takes the lock later panics, too, unless it says how to mend what is guarded.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

use crate::order::{HasRank, Held, Rank};
use crate::waiting::{self, Waiting};

/// How somebody wants a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Alone.
    Exclusive,
    /// With others who share it.
    Shared,
}

/// A lock that somebody wants or holds, and where.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Tells locks apart while they live.
    pub lock: usize,
    /// Its rank.
    pub rank: Rank,
    /// How.
    pub access: Access,
    /// The line that asks for it.
    pub line: &'static Location<'static>,
}

impl Place {
    #[track_caller]
    fn of<T: ?Sized, R: HasRank>(lock: &T, access: Access) -> Self {
        let lock = std::ptr::from_ref(lock).addr();
        Self { lock, rank: R::RANK, access, line: Location::caller() }
    }

    #[cfg(all(test, debug_assertions))]
    #[track_caller]
    pub(crate) fn nowhere(rank: Rank, access: Access) -> Self {
        Self { lock: 0, rank, access, line: Location::caller() }
    }
}

/// Why nobody expects a panic under a lock.
const POISONED: &str = "no panic while held";

/// The answer of a lock of `std::sync`, where a panic under it is a bug.
pub trait Unpoisoned {
    /// What was asked for.
    type Got;

    /// It, if nobody panicked under the lock.
    ///
    /// # Panics
    /// If somebody did.
    fn unpoisoned(self) -> Self::Got;
}

impl<G> Unpoisoned for Result<G, PoisonError<G>> {
    type Got = G;

    #[track_caller]
    fn unpoisoned(self) -> G {
        self.expect(POISONED)
    }
}

/// What taking a lock comes to. Poisoned locks are taken all the same.
type Taken<G> = Result<G, PoisonError<G>>;

/// Takes a lock by `attempt`, or by `wait` after `before` where that means to wait; `before` may refuse that. For a lock that is
/// held for moments only, `before` is not asked.
fn take<R: HasRank, G, E>(
    place: Place,
    before: impl FnOnce() -> Result<(), E>,
    attempt: impl Fn() -> TryLockResult<G>,
    wait: impl FnOnce() -> Taken<G>,
) -> Result<Taken<G>, E> {
    #[cfg(debug_assertions)]
    if let Some(scheduler) = crate::schedule::scheduler() {
        scheduler.point(place);
        let mut before = Some(before);
        loop {
            let is_barred = place.access == Access::Shared && scheduler.has_writer_waiting(place.lock);
            let taken = if is_barred { Err(TryLockError::WouldBlock) } else { attempt() };
            let taken = match taken {
                Ok(guard) => Ok(guard),
                Err(TryLockError::Poisoned(broken)) => Err(broken),
                Err(TryLockError::WouldBlock) => {
                    if let Some(before) = before.take() {
                        before()?;
                    }
                    scheduler.blocked(place);
                    continue;
                }
            };
            scheduler.taken(place);
            return Ok(taken);
        }
    }
    let _ = place;
    if !R::LONG {
        return Ok(wait());
    }
    Ok(match attempt() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(broken)) => Err(broken),
        Err(TryLockError::WouldBlock) => {
            before()?;
            let _waiting = Waiting::begin();
            wait()
        }
    })
}

/// Nothing is to be done before a wait, and nobody refuses it.
fn at_any_price() -> Result<(), Infallible> {
    Ok(())
}

/// Takes a lock if nobody has it. Whoever waits for it exclusively comes first.
fn attempt<G>(place: Place, attempt: impl FnOnce() -> TryLockResult<G>) -> Option<G> {
    #[cfg(debug_assertions)]
    let scheduler = crate::schedule::scheduler();
    #[cfg(debug_assertions)]
    if let Some(scheduler) = &scheduler {
        scheduler.point(place);
        if place.access == Access::Shared && scheduler.has_writer_waiting(place.lock) {
            return None;
        }
    }
    let taken = match attempt() {
        Ok(guard) => guard,
        Err(TryLockError::WouldBlock) => return None,
        Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
    };
    #[cfg(debug_assertions)]
    if let Some(scheduler) = &scheduler {
        scheduler.taken(place);
    }
    let _ = place;
    Some(taken)
}

/// A lock for one at a time, of rank `R`.
pub struct Mutex<T, R> {
    rank: PhantomData<R>,
    lock: std::sync::Mutex<T>,
}

impl<T, R: HasRank> Mutex<T, R> {
    /// A lock that nobody has.
    pub const fn new(value: T) -> Self {
        Self { rank: PhantomData, lock: std::sync::Mutex::new(value) }
    }

    /// The lock, after a wait if need be.
    ///
    /// # Panics
    /// If somebody panicked under it; in debug builds, if it is out of order.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let Ok((taken, held)) = self.take(at_any_price);
        self.guard(taken.expect(POISONED), held)
    }

    /// The lock, for who has changed nothing and holds nothing that outlives the answer. Of a rank that is held long.
    ///
    /// # Errors
    /// [`Error::WouldWait`](crate::Error::WouldWait) if somebody has it, on a thread that refuses to wait.
    ///
    /// # Panics
    /// As for [`Mutex::lock`].
    #[track_caller]
    pub fn ask(&self) -> crate::Result<MutexGuard<'_, T>> {
        self.ask_after(waiting::ask)
    }

    /// The lock; `before` is asked if that means to wait. Of a rank that is held long.
    ///
    /// # Errors
    /// What `before` answers.
    ///
    /// # Panics
    /// As for [`Mutex::lock`].
    #[track_caller]
    pub fn ask_after<E>(&self, before: impl FnOnce() -> Result<(), E>) -> Result<MutexGuard<'_, T>, E> {
        const { assert!(R::LONG, "a lock that is held for moments is waited for by everybody") };
        let (taken, held) = self.take(before)?;
        Ok(self.guard(taken.expect(POISONED), held))
    }

    /// The lock, even if somebody panicked under it: then `mend` puts in order what it guards.
    ///
    /// # Panics
    /// In debug builds, if it is out of order.
    #[track_caller]
    pub fn lock_mended(&self, mend: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
        let Ok((taken, held)) = self.take(at_any_price);
        self.guard(mended(taken, mend), held)
    }

    /// The lock, if nobody has it: out of order, too.
    ///
    /// # Panics
    /// If somebody panicked under it.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let place = Place::of::<_, R>(self, Access::Exclusive);
        let guard = attempt(place, || self.lock.try_lock())?;
        Some(self.guard(guard, Held::attempt(place)))
    }

    /// The same, even if somebody panicked under it: then `mend` puts in order what it guards.
    #[track_caller]
    pub fn try_lock_mended(&self, mend: impl FnOnce(&mut T)) -> Option<MutexGuard<'_, T>> {
        let place = Place::of::<_, R>(self, Access::Exclusive);
        let guard = attempt(place, || match self.lock.try_lock() {
            Err(TryLockError::Poisoned(broken)) => Ok(mended(Err(broken), mend)),
            taken => taken,
        })?;
        Some(self.guard(guard, Held::attempt(place)))
    }

    /// What it guards, for somebody who has the lock for himself, whether or not anybody panicked under it.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    #[track_caller]
    fn take<E>(&self, before: impl FnOnce() -> Result<(), E>) -> Result<(Taken<Std<'_, T>>, Held), E> {
        let place = Place::of::<_, R>(self, Access::Exclusive);
        let held = Held::enter(place);
        Ok((take::<R, _, _>(place, before, || self.lock.try_lock(), || self.lock.lock())?, held))
    }

    fn guard<'a>(&'a self, guard: std::sync::MutexGuard<'a, T>, held: Held) -> MutexGuard<'a, T> {
        MutexGuard {
            guard,
            held: Released(held),
            #[cfg(debug_assertions)]
            lock: &self.lock,
        }
    }
}

fn mended<G: DerefMut>(taken: Result<G, PoisonError<G>>, mend: impl FnOnce(&mut G::Target)) -> G
where
    G::Target: Sized,
{
    taken.unwrap_or_else(|broken| {
        let mut guard = broken.into_inner();
        mend(&mut guard);
        guard
    })
}

/// Tells that a lock is free again. In guards it comes after the guard of `std`, and so it is dropped when that is.
#[derive(Debug)]
struct Released(Held);

#[cfg(debug_assertions)]
impl Drop for Released {
    fn drop(&mut self) {
        if let Some(scheduler) = crate::schedule::scheduler() {
            scheduler.released(self.0.place());
        }
    }
}

/// A [`Mutex`] that is held.
pub struct MutexGuard<'a, T> {
    guard: std::sync::MutexGuard<'a, T>,
    #[cfg_attr(not(debug_assertions), expect(dead_code, reason = "it is empty"))]
    held: Released,
    #[cfg(debug_assertions)]
    lock: &'a std::sync::Mutex<T>,
}

/// A lock that many may share, of rank `R`.
pub struct RwLock<T, R> {
    rank: PhantomData<R>,
    lock: std::sync::RwLock<T>,
}

impl<T, R: HasRank> RwLock<T, R> {
    /// A lock that nobody has.
    pub const fn new(value: T) -> Self {
        Self { rank: PhantomData, lock: std::sync::RwLock::new(value) }
    }

    /// The lock, shared.
    ///
    /// # Panics
    /// As for [`Mutex::lock`].
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let Ok(guard) = self.share(at_any_price);
        guard
    }

    /// The lock, shared, for who has changed nothing and holds nothing that outlives the answer. Of a rank that is held long.
    ///
    /// # Errors
    /// [`Error::WouldWait`](crate::Error::WouldWait) if somebody has it alone, on a thread that refuses to wait.
    ///
    /// # Panics
    /// As for [`Mutex::lock`].
    #[track_caller]
    pub fn ask(&self) -> crate::Result<RwLockReadGuard<'_, T>> {
        const { assert!(R::LONG, "a lock that is held for moments is waited for by everybody") };
        self.share(waiting::ask)
    }

    #[track_caller]
    fn share<E>(&self, before: impl FnOnce() -> Result<(), E>) -> Result<RwLockReadGuard<'_, T>, E> {
        let place = Place::of::<_, R>(self, Access::Shared);
        let held = Held::enter(place);
        let taken = take::<R, _, _>(place, before, || self.lock.try_read(), || self.lock.read())?;
        Ok(RwLockReadGuard { guard: taken.expect(POISONED), _held: Released(held) })
    }

    /// The lock, alone.
    ///
    /// # Panics
    /// As for [`Mutex::lock`].
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let place = Place::of::<_, R>(self, Access::Exclusive);
        let held = Held::enter(place);
        let Ok(taken) = take::<R, _, _>(place, at_any_price, || self.lock.try_write(), || self.lock.write());
        RwLockWriteGuard { guard: taken.expect(POISONED), _held: Released(held) }
    }

    /// The lock, shared, if nobody has it alone or waits for that: out of order, too.
    ///
    /// # Panics
    /// If somebody panicked under it.
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let place = Place::of::<_, R>(self, Access::Shared);
        let guard = attempt(place, || self.lock.try_read())?;
        Some(RwLockReadGuard { guard, _held: Released(Held::attempt(place)) })
    }

    /// The lock, alone, if nobody has it: out of order, too.
    ///
    /// # Panics
    /// If somebody panicked under it.
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let place = Place::of::<_, R>(self, Access::Exclusive);
        let guard = attempt(place, || self.lock.try_write())?;
        Some(RwLockWriteGuard { guard, _held: Released(Held::attempt(place)) })
    }
}

/// A [`RwLock`] that is shared.
pub struct RwLockReadGuard<'a, T> {
    guard: std::sync::RwLockReadGuard<'a, T>,
    _held: Released,
}

/// A [`RwLock`] that is held alone.
pub struct RwLockWriteGuard<'a, T> {
    guard: std::sync::RwLockWriteGuard<'a, T>,
    _held: Released,
}

/// Where those who hold a [`Mutex`] wait for what others do under it. A panic of theirs is mended as by [`Mutex::lock_mended`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// One that nobody waits at.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Waits until somebody notifies; the lock is free meanwhile.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, mend: impl FnOnce(&mut T)) -> MutexGuard<'a, T> {
        self.wait_until(guard, false, mend, |condition, guard| condition.wait(guard))
    }

    /// Waits until somebody notifies, or so long at most.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        mend: impl FnOnce(&mut T),
    ) -> MutexGuard<'a, T> {
        self.wait_until(guard, true, mend, |condition, guard| match condition.wait_timeout(guard, limit) {
            Ok((guard, _)) => Ok(guard),
            Err(broken) => Err(PoisonError::new(broken.into_inner().0)),
        })
    }

    fn wait_until<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        has_limit: bool,
        mend: impl FnOnce(&mut T),
        wait: impl FnOnce(&std::sync::Condvar, Std<'a, T>) -> Result<Std<'a, T>, PoisonError<Std<'a, T>>>,
    ) -> MutexGuard<'a, T> {
        #[cfg(debug_assertions)]
        if let Some(scheduler) = crate::schedule::scheduler() {
            let MutexGuard { guard, held, lock } = guard;
            let place = held.0.place();
            drop(guard);
            scheduler.released(place);
            scheduler.wait(std::ptr::from_ref(self).addr(), has_limit);
            loop {
                let taken = match lock.try_lock() {
                    Ok(guard) => Ok(guard),
                    Err(TryLockError::Poisoned(broken)) => Err(broken),
                    Err(TryLockError::WouldBlock) => {
                        scheduler.blocked(place);
                        continue;
                    }
                };
                scheduler.taken(place);
                return MutexGuard { guard: mended(taken, mend), held, lock };
            }
        }
        let _ = has_limit;
        MutexGuard { guard: mended(wait(&self.0, guard.guard), mend), ..guard }
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
        #[cfg(debug_assertions)]
        if let Some(scheduler) = crate::schedule::scheduler() {
            scheduler.notified(std::ptr::from_ref(self).addr());
        }
    }
}

type Std<'a, T> = std::sync::MutexGuard<'a, T>;

impl<T: Default, R: HasRank> Default for Mutex<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Default, R: HasRank> Default for RwLock<T, R> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug, R> fmt::Debug for Mutex<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

impl<T: fmt::Debug, R> fmt::Debug for RwLock<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock.fmt(f)
    }
}

/// What a guard guards.
macro_rules! derefs {
    ($($guard:ident: $($mutable:ident)?;)*) => {
        $(
            impl<T> Deref for $guard<'_, T> {
                type Target = T;

                fn deref(&self) -> &T {
                    &self.guard
                }
            }

            impl<T: fmt::Debug> fmt::Debug for $guard<'_, T> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.guard.fmt(f)
                }
            }

            $(
                impl<T> $mutable for $guard<'_, T> {
                    fn deref_mut(&mut self) -> &mut T {
                        &mut self.guard
                    }
                }
            )?
        )*
    };
}

derefs! {
    MutexGuard: DerefMut;
    RwLockReadGuard: ;
    RwLockWriteGuard: DerefMut;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::Error;
    use crate::order::rank;

    /// Runs `look` while another thread holds what `hold` takes.
    fn while_held<G>(hold: impl FnOnce() -> G + Send, look: impl FnOnce()) {
        let ((tell, hear), (release, released)) = (channel(), channel::<()>());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _guard = hold();
                tell.send(()).unwrap();
                // Until the other side is gone.
                let _ = released.recv();
            });
            hear.recv().unwrap();
            look();
            drop(release);
        });
    }

    #[test]
    fn who_refuses_to_wait_gets_what_is_free() {
        let (gate, writer) = (RwLock::<_, rank::Gate>::new(1), Mutex::<_, rank::Writer>::new(2));
        let _refusing = waiting::refuse();
        assert_eq!((*gate.ask().unwrap(), *writer.ask().unwrap()), (1, 2));
        while_held(|| gate.write(), || assert!(matches!(gate.ask().map(|_| ()), Err(Error::WouldWait))));
        while_held(|| writer.lock(), || assert!(matches!(writer.ask().map(|_| ()), Err(Error::WouldWait))));
        // What was refused has left no rank behind.
        assert_eq!((*gate.ask().unwrap(), *writer.ask().unwrap()), (1, 2));
    }

    #[test]
    fn who_would_wait_is_asked_before_and_only_then() {
        let writer = Mutex::<_, rank::Writer>::new(());
        assert!(writer.ask_after(|| Err("asked")).is_ok());
        while_held(|| writer.lock(), || assert_eq!(writer.ask_after(|| Err("asked")).err(), Some("asked")));
    }

    #[test]
    fn what_somebody_panicked_under_can_be_tried_and_mended() {
        let lock = Mutex::<_, rank::Seat>::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = lock.lock();
            panic!("under it");
        }));
        assert!(panicked.is_err());
        assert_eq!(lock.try_lock_mended(|value| *value += 1).as_deref(), Some(&2));
    }
}
