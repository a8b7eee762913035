//! Locks that know their place in the order: those of `std::sync`, with a rank in the type.
//!
//! Debug builds check the order of every lock that is waited for ([`order`](crate::order)) and hand over to other threads where a
//! laboratory wants that ([`schedule`](crate::schedule)). Release builds do what `std::sync` does. A panic under a lock is a bug:
//! whoever takes the lock later panics, too, unless it says how to mend what is guarded.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

use crate::order::{HasRank, Held, Rank};
use crate::waiting::Waiting;

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

/// Takes a lock by `attempt`, or by `wait` after `before` where that means to wait. Poisoned locks are taken all the same.
fn take<R: HasRank, G>(
    place: Place,
    before: impl FnOnce(),
    attempt: impl Fn() -> TryLockResult<G>,
    wait: impl FnOnce() -> Result<G, PoisonError<G>>,
) -> Result<G, PoisonError<G>> {
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
                        before();
                    }
                    scheduler.blocked(place);
                    continue;
                }
            };
            scheduler.taken(place);
            return taken;
        }
    }
    let _ = place;
    if !R::LONG {
        return wait();
    }
    match attempt() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(broken)) => Err(broken),
        Err(TryLockError::WouldBlock) => {
            before();
            let _waiting = Waiting::begin();
            wait()
        }
    }
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
        self.lock_after(|| ())
    }

    /// The lock; `before` is called if that means to wait.
    ///
    /// # Panics
    /// As for [`Mutex::lock`].
    #[track_caller]
    pub fn lock_after(&self, before: impl FnOnce()) -> MutexGuard<'_, T> {
        let (taken, held) = self.take(before);
        self.guard(taken.expect(POISONED), held)
    }

    /// The lock, even if somebody panicked under it: then `mend` puts in order what it guards.
    ///
    /// # Panics
    /// In debug builds, if it is out of order.
    #[track_caller]
    pub fn lock_mended(&self, mend: impl FnOnce(&mut T)) -> MutexGuard<'_, T> {
        let (taken, held) = self.take(|| ());
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

    /// What it guards, for somebody who has the lock for himself, whether or not anybody panicked under it.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    #[track_caller]
    fn take(
        &self,
        before: impl FnOnce(),
    ) -> (Result<std::sync::MutexGuard<'_, T>, PoisonError<std::sync::MutexGuard<'_, T>>>, Held) {
        let place = Place::of::<_, R>(self, Access::Exclusive);
        let held = Held::enter(place);
        (take::<R, _>(place, before, || self.lock.try_lock(), || self.lock.lock()), held)
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
struct Released(#[cfg_attr(not(debug_assertions), expect(dead_code, reason = "it is empty"))] Held);

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
        let place = Place::of::<_, R>(self, Access::Shared);
        let held = Held::enter(place);
        let guard = take::<R, _>(place, || (), || self.lock.try_read(), || self.lock.read()).expect(POISONED);
        RwLockReadGuard { guard, _held: Released(held) }
    }

    /// The lock, alone.
    ///
    /// # Panics
    /// As for [`Mutex::lock`].
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let place = Place::of::<_, R>(self, Access::Exclusive);
        let held = Held::enter(place);
        let guard =
            take::<R, _>(place, || (), || self.lock.try_write(), || self.lock.write()).expect(POISONED);
        RwLockWriteGuard { guard, _held: Released(held) }
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
