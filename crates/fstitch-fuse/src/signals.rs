//! SIGTERM, SIGINT and SIGHUP end a mount cleanly.

use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::{UnmountError, Unmounter};

/// While this lives, SIGTERM, SIGINT and SIGHUP unmount instead of killing the process: the process then ends
/// by itself when everything is stable. A mount in use is taken out of sight and served until the last file is
/// closed there. Several mounts of one process go in the order in which they are given.
#[derive(Debug)]
pub struct UnmountOnSignal {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl UnmountOnSignal {
    /// Takes over the signals. `report` gets one line for people where something needs saying.
    ///
    /// # Errors
    /// As the operating system has it.
    pub fn install(
        unmounters: Vec<Unmounter>,
        report: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, std::io::Error> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let handle = signals.handle();
        let thread = std::thread::Builder::new().name("fuse-signals".to_owned()).spawn(move || {
            for _ in signals.forever() {
                for unmounter in &unmounters {
                    end(unmounter, &report);
                }
            }
        })?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

fn end(unmounter: &Unmounter, report: &impl Fn(&str)) {
    match unmounter.unmount() {
        Ok(()) => {}
        Err(UnmountError::Busy(at)) => {
            report(&format!(
                "{} is in use: it is no longer visible and will be finished when the last file is closed",
                at.display()
            ));
            if let Err(e) = unmounter.detach() {
                report(&e.to_string());
            }
        }
        Err(e) => report(&e.to_string()),
    }
}

impl Drop for UnmountOnSignal {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the signal thread panicked");
        }
    }
}
