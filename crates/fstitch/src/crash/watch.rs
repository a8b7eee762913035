//! What a long search shows while it runs, and how an interrupt ends it with what it has.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Clock, SystemClock};
use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::output::Outcome;

/// How often a line is printed where there is no terminal to draw a bar on.
const LINE_EVERY: Duration = Duration::from_secs(3);

/// A search that is watched.
pub struct Watch {
    show: Show,
    what: &'static str,
    clock: SystemClock,
    interrupted: Arc<AtomicBool>,
}

enum Show {
    Nothing,
    Bar(ProgressBar),
    /// Lines on standard error; when the last one was printed.
    Lines(Mutex<Duration>),
}

impl Watch {
    /// From here on the first interrupt only asks for an end; a second one ends the program.
    ///
    /// # Errors
    /// When signals cannot be caught.
    pub fn new(quiet: bool, len: u64, what: &'static str) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let code = i32::from(Outcome::INTERRUPTED.0);
        // In this order: the first signal finds the flag down and raises it.
        flag::register_conditional_shutdown(SIGINT, code, Arc::clone(&interrupted))
            .and_then(|_| flag::register(SIGINT, Arc::clone(&interrupted)))
            .context("handling signals")?;
        let show = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Show::Nothing,
            (false, true) => Show::Bar(bar(len, what)),
            (false, false) => Show::Lines(Mutex::new(Duration::ZERO)),
        };
        Ok(Self { show, what, clock: SystemClock::new(), interrupted })
    }

    /// Seconds since the beginning.
    pub fn seconds(&self) -> f64 {
        self.clock.elapsed().as_secs_f64()
    }

    /// How far it is; a break when it is to end.
    pub fn tell(&self, at: u64, len: u64, message: &dyn Fn() -> String) -> ControlFlow<()> {
        match &self.show {
            Show::Nothing => {}
            Show::Bar(bar) => {
                bar.set_length(len);
                bar.set_position(at);
                bar.set_message(message());
            }
            Show::Lines(last) => {
                let mut last = last.lock().unpoisoned();
                let now = self.clock.elapsed();
                if now >= *last + LINE_EVERY {
                    *last = now;
                    eprintln!("{at} of {len} {}, {}, after {} s", self.what, message(), now.as_secs());
                }
            }
        }
        if self.is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Whether somebody has asked for an end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Takes the bar away, and says that what follows is a part where it is; returns how the command ends, if it is otherwise to
    /// end with `outcome`.
    pub fn end(&self, outcome: Outcome) -> Outcome {
        if let Show::Bar(bar) = &self.show {
            bar.finish_and_clear();
        }
        if !self.is_interrupted() {
            return outcome;
        }
        eprintln!("fstitch: interrupted; this is what was found until then");
        Outcome::INTERRUPTED
    }
}

fn bar(len: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(len);
    let template = format!("{{bar:30}} {{pos}}/{{len}} {what}, {{msg}}, {{eta}} left");
    let style = ProgressStyle::with_template(&template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
