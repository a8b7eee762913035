//! The thread, with means that touch nothing of this machine.

use super::*;

/// Means as root has them, in a file that nobody reads.
fn of_root(file: &Path) -> Holder {
    Holder { latency: file.to_owned(), class: None, processors: vec![0, 1], spinners: None }
}

fn wait_until(done: impl Fn() -> bool) {
    let mut patience = 5_000;
    while !done() {
        std::thread::sleep(Duration::from_millis(1));
        patience -= 1;
        assert!(patience > 0, "it never came");
    }
}

fn verdict(means: Option<Means>) -> Verdict {
    Verdict { means, why: "a test", ..Verdict::default() }
}

/// A thread whose first verdict is over, and then says `means` for as long as verdicts count.
fn judged(mode: AwakeMode, file: &Path, means: Option<Means>) -> Awake {
    let awake = Awake::by(mode, of_root(file)).unwrap();
    wait_until(|| awake.shared.lock().verdict.why != "not measured yet");
    awake.shared.lock().verdict = verdict(means);
    awake
}

fn is_held(awake: &Awake) -> bool {
    Awake::watch(Some(awake)).report().held
}

#[test]
fn requests_hold_it_and_silence_lets_it_go() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for (mode, requests) in [(AwakeMode::On, 1), (AwakeMode::Auto, 12)] {
        let awake = judged(mode, file.path(), Some(Means::Latency));
        for _ in 0..2 {
            // On a busy machine they may not come fast enough at first.
            wait_until(|| {
                (0..requests).for_each(|_| awake.note());
                is_held(&awake)
            });
            assert_eq!(std::fs::read(file.path()).unwrap(), [0; 4], "a latency of nothing");
            wait_until(|| !is_held(&awake));
        }
        (0..requests).for_each(|_| awake.note());
        drop(awake);
    }
}

#[test]
fn few_requests_hold_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let awake = judged(AwakeMode::Auto, file.path(), Some(Means::Latency));
    for _ in 0..20 {
        awake.note();
        std::thread::sleep(Duration::from_millis(5));
        assert!(!is_held(&awake));
    }
}

#[test]
fn where_it_is_not_worth_while_requests_are_soon_not_looked_at() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let awake = judged(AwakeMode::Auto, file.path(), None);
    wait_until(|| {
        (0..100).for_each(|_| awake.note());
        awake.shared.deaf_until.load(Ordering::Relaxed) > 0
    });
    assert!(!is_held(&awake));
    (0..100).for_each(|_| awake.note());
    assert!(!awake.shared.called.load(Ordering::Relaxed), "for some seconds");
}

#[test]
fn who_asks_for_it_without_means_is_told() {
    let none = Path::new("/dev/no/such/file");
    assert!(hold(none).is_err());
    assert!(of_root(none).candidates().is_empty());
    assert!(Awake::new(AwakeMode::Off, None).unwrap().is_none());
}

#[test]
fn modes_have_words() {
    for mode in [AwakeMode::Auto, AwakeMode::On, AwakeMode::Off] {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
    assert!("maybe".parse::<AwakeMode>().unwrap_err().contains("auto"));
}
