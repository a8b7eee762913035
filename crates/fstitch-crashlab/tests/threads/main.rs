//! The scheduler of the thread laboratory, on small programs whose races are known.
//!
//! What it prevents: a laboratory that misses a race because it never hands over where that matters, one that finds what cannot
//! happen, and failures that do not replay.
#![cfg(debug_assertions)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fstitch_core::lock::{Condvar, Mutex, RwLock};
use fstitch_core::order::rank;
use fstitch_crashlab::threads::{Body, End, Grain, Plan, Schedule, Tried, play};

type Lock<T> = Mutex<T, rank::Inode>;

/// A thread that does this.
fn body(work: impl FnOnce() + Send + 'static) -> Body {
    Box::new(move |_| work())
}

/// Tries all schedules with so many preemptions. Returns how many there are, or the first that ends early or is `wrong`.
fn explore(
    preemptions: u32,
    threads: &dyn Fn() -> Vec<Body>,
    wrong: &dyn Fn() -> bool,
) -> Result<u32, (Schedule, Option<End>)> {
    let mut tried = 0;
    let all = Plan::Bounded { preemptions, grain: Grain::Fine }.search(&mut |schedule| {
        tried += 1;
        let played = play(schedule, threads());
        if played.end.is_some() || wrong() {
            return Tried::Wrong((schedule.clone(), played.end));
        }
        Tried::Fine(played.steps)
    })?;
    assert!(all, "nobody stops it");
    Ok(tried)
}

/// Two threads that take two locks in opposite orders.
fn crossing() -> Vec<Body> {
    let locks = Arc::new((Lock::new(0), Lock::new(0)));
    let other = Arc::clone(&locks);
    let forth = body(move || {
        let _first = locks.0.lock();
        let _second = locks.1.lock();
    });
    let back = body(move || {
        let _second = other.1.lock();
        let _first = other.0.lock();
    });
    vec![forth, back]
}

#[test]
fn a_deadlock_is_found_and_says_who_holds_what() {
    assert_eq!(explore(0, &crossing, &|| false), Ok(2), "without preemption there is none");
    let (schedule, end) = explore(1, &crossing, &|| false).expect_err("one thread between the other's locks");
    let Some(End::Deadlock(report)) = end else { panic!("{end:?}") };
    assert_eq!(report.lines().count(), 2, "{report}");
    for (no, other) in [(0, 1), (1, 0)] {
        let line = report.lines().nth(no).expect("a line for each");
        assert!(line.starts_with(&format!("thread {no} waits for Exclusive Inode")), "{line}");
        assert!(line.contains(&format!("which thread {other} holds")), "{line}");
        assert!(
            line.contains("it holds Exclusive Inode") && line.contains("tests/threads/main.rs"),
            "{line}"
        );
    }
    let again = play(&schedule.to_string().parse().expect("as it is written"), crossing());
    assert_eq!(again.end, Some(End::Deadlock(report)), "the same schedule is the same run");
}

#[test]
fn a_lost_update_is_found_and_a_kept_one_is_not() {
    let count = Arc::new(AtomicU32::new(0));
    let add = |holds: bool| {
        let count = Arc::clone(&count);
        move || -> Vec<Body> {
            let lock: Arc<Lock<u32>> = Arc::default();
            count.store(0, Ordering::Relaxed);
            let add = || {
                let (lock, count) = (Arc::clone(&lock), Arc::clone(&count));
                body(move || {
                    let mut held = lock.lock();
                    let before = *held;
                    if !holds {
                        drop(held);
                        held = lock.lock();
                    }
                    *held = before + 1;
                    count.store(*held, Ordering::Relaxed);
                })
            };
            vec![add(), add()]
        }
    };
    let is_lost = || count.load(Ordering::Relaxed) != 2;
    assert!(explore(2, &add(true), &is_lost).expect("none is lost") > 4);
    assert!(explore(0, &add(false), &is_lost).is_ok(), "without preemption none is lost");
    let (schedule, end) = explore(1, &add(false), &is_lost).expect_err("one between two locks of the other");
    assert_eq!((schedule.0.len(), end), (1, None));
}

/// Somebody waits for a flag that another sets; whether it is looked at under the lock makes the difference.
fn flag(looks_under_lock: bool) -> Vec<Body> {
    let shared: Arc<(Lock<bool>, Condvar)> = Arc::default();
    let other = Arc::clone(&shared);
    let waits = body(move || {
        if looks_under_lock {
            let mut set = shared.0.lock();
            while !*set {
                set = shared.1.wait(set, |_| ());
            }
        } else if !*shared.0.lock() {
            drop(shared.1.wait(shared.0.lock(), |_| ()));
        }
    });
    let sets = body(move || {
        *other.0.lock() = true;
        other.1.notify_all();
    });
    vec![waits, sets]
}

#[test]
fn a_lost_wake_up_is_found() {
    assert!(explore(2, &|| flag(true), &|| false).is_ok());
    let (_, end) = explore(1, &|| flag(false), &|| false).expect_err("set between look and wait");
    assert!(
        matches!(&end, Some(End::Deadlock(report)) if report.contains("waits for somebody to notify it"))
    );
}

#[test]
fn who_waits_alone_comes_before_who_would_share() {
    let threads = || {
        let lock: Arc<RwLock<(), rank::Inode>> = Arc::default();
        let other = Arc::clone(&lock);
        let reads_twice = body(move || {
            let _once = lock.read();
            let _twice = lock.read();
        });
        vec![reads_twice, body(move || drop(other.write()))]
    };
    let (_, end) = explore(1, &threads, &|| false).expect_err("the second look waits behind the writer");
    assert!(
        matches!(&end, Some(End::Deadlock(report)) if report.contains("behind one who waits for it alone"))
    );
}

#[test]
fn a_panic_is_told_as_the_first_thread_said_it() {
    let threads = || {
        let lock: Arc<Lock<()>> = Arc::default();
        let other = Arc::clone(&lock);
        let panics = body(move || {
            let _held = lock.lock();
            panic!("the reason");
        });
        vec![panics, body(move || drop(other.lock()))]
    };
    let played = play(&Schedule::default(), threads());
    assert_eq!(played.end, Some(End::Panic("thread 0: the reason".to_owned())));
}

#[test]
fn time_passes_where_nobody_can_go_on() {
    let shared: Arc<(Lock<()>, Condvar)> = Arc::default();
    let limit = std::time::Duration::from_secs(3600);
    let waits = body(move || drop(shared.1.wait_timeout(shared.0.lock(), limit, |_| ())));
    assert_eq!(play(&Schedule::default(), vec![waits]).end, None);
}

#[test]
fn a_schedule_of_another_program_is_refused() {
    let played = play(&"1-7".parse().expect("a schedule"), crossing());
    assert_eq!(played.end, Some(End::Foreign));
}
