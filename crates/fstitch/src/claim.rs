//! A volume that tells other machines who uses it (feature `mmp`) is claimed before it is changed, and says so again as long as that lasts.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockDevice, Clock, Error, SystemClock, Timestamp};
use fstitch_formats::{Around, Claim, Shares, Who};
use indicatif::ProgressBar;

use crate::output::spinner;

/// A claim, and the thread that renews it.
pub struct Claimed {
    claim: Arc<Claim>,
    /// Whether it is over.
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Claimed {
    /// Claims the volume on `device`, which somebody calls `name`.
    ///
    /// # Errors
    /// If somebody else uses it, or that cannot be told.
    pub fn new(device: Arc<dyn BlockDevice>, shares: &dyn Shares, name: &Path) -> Result<Self> {
        Self::kept(asked(name, false, |who, around| shares.claim(device, who, around))?, name)
    }

    /// The same of a volume that says it is being checked when somebody knows that it is not.
    ///
    /// # Errors
    /// If somebody uses it nevertheless, or that cannot be told.
    pub fn after_check(device: Arc<dyn BlockDevice>, shares: &dyn Shares, name: &Path) -> Result<Self> {
        Self::kept(asked(name, true, |who, around| shares.claim(device, who, around))?, name)
    }

    /// The same of a volume that is to be mended. `None` if nothing tells who uses it.
    ///
    /// # Errors
    /// If somebody else uses it, or that cannot be told.
    pub fn to_mend(device: &Arc<dyn BlockDevice>, shares: &dyn Shares, name: &Path) -> Result<Option<Self>> {
        let claim = asked(name, false, |who, around| shares.claim_to_mend(device, &who, around))?;
        claim.map(|claim| Self::kept(claim, name)).transpose()
    }

    /// What was claimed, said again and again.
    fn kept(claim: Claim, name: &Path) -> Result<Self> {
        let (claim, over) = (Arc::new(claim), Arc::<(Mutex<bool>, Condvar)>::default());
        let renewing = (Arc::clone(&claim), Arc::clone(&over), name.display().to_string());
        let thread = std::thread::Builder::new()
            .name("mmp".into())
            .spawn(move || renew(&renewing.0, &renewing.1, &renewing.2));
        match thread {
            Ok(thread) => Ok(Self { claim, over, thread: Some(thread) }),
            Err(error) => {
                claim.release()?;
                Err(error).context("starting the thread that says that the volume is in use")
            }
        }
    }

    /// The volume, as long as it is nobody else's.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.claim) as _
    }

    /// Says that nobody uses the volume any more.
    ///
    /// # Errors
    /// Those of the device.
    pub fn release(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        *self.over.0.lock().unpoisoned() = true;
        self.over.1.notify_all();
        let _ = thread.join();
        Ok(self.claim.release()?)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        // Whoever could hear of a failure has released it.
        let _ = self.end();
    }
}

/// What comes of claiming a volume by `claim`.
fn asked<T>(
    name: &Path,
    no_check: bool,
    claim: impl FnOnce(Who, Around<'_>) -> fstitch_core::Result<T>,
) -> Result<T> {
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let device = name.file_name().unwrap_or(name.as_os_str()).to_string_lossy().into_owned();
    let display = spinner(false);
    let mut wait = waiting(&display, name);
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let around = Around {
        clock: Arc::new(AwakeOrNot(SystemClock::new())),
        random: u32::from_le_bytes(random),
        no_check,
        wait: &mut wait,
    };
    let claimed = claim(Who { node, device }, around);
    drop(wait);
    display.finish_and_clear();
    Ok(claimed?)
}

/// The system's clock, by which time goes on while the machine sleeps.
struct AwakeOrNot(SystemClock);

impl Clock for AwakeOrNot {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn elapsed(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (secs, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
        Duration::new(secs.unwrap_or(0), nanos.unwrap_or(0))
    }
}

/// Waits, and says why.
fn waiting(display: &ProgressBar, name: &Path) -> impl FnMut(Duration) -> fstitch_core::Result<()> {
    move |patience| {
        let said = format!("waiting {} s to see whether another machine uses it (mmp)", patience.as_secs());
        if display.is_hidden() {
            eprintln!("{}: {said}", name.display());
        }
        display.set_message(said);
        display.enable_steady_tick(Duration::from_millis(200));
        std::thread::sleep(patience);
        Ok(())
    }
}

fn renew(claim: &Claim, (over, changed): &(Mutex<bool>, Condvar), name: &str) {
    let mut is_over = over.lock().unpoisoned();
    let mut fails = false;
    while !*is_over {
        let (guard, timeout) = changed
            .wait_timeout(is_over, claim.interval())
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        is_over = guard;
        if *is_over || !timeout.timed_out() {
            continue;
        }
        match claim.renew() {
            Ok(()) => fails = false,
            Err(Error::Locked(why)) => {
                tracing::error!("{name}: {why}; nothing is written any more");
                return;
            }
            Err(error) if !fails => {
                tracing::warn!("{name}: cannot say that the volume is in use: {error}");
                fails = true;
            }
            Err(_) => {}
        }
    }
}
